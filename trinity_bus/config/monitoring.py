"""The sections ``health`` and ``telemetry``: how a service says that it works, and what it measures."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from schemas.record import Identifier
from trinity_bus.config.values import Seconds, Section


class HealthSettings(Section):
    """Where a service answers ``/livez`` and ``/readyz``."""

    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    """Port of the endpoint. Unset: none."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    wedged_s: Seconds = 15.0
    """A process whose event loop is blocked for this long is not alive."""
    start_s: Seconds = 900.0
    """How long a process may take to start."""
    unread_s: Seconds = 60.0
    """A service that has read nothing for this long, although there is something to read, is not ready."""


class TelemetrySettings(Section):
    """Spans and metrics without an OTLP endpoint. See docs/telemetry.md."""

    run_dir: Path | None = None
    """Folder of this run: spans go to ``traces/``, metrics to ``metrics/``. Unset: they are not stored."""
    run_id: Identifier | None = None
    """Name of this run, for a telemetry system with several runs. Unset: the name of ``run_dir``."""
    metrics_interval_s: Seconds = 10.0
    """How often metrics are written."""
    record_content: bool = False
    """Whether spans may contain texts of workflow errors, which may quote responses and tasks."""
