"""The section ``telemetry``: where spans and metrics go without an OTLP endpoint."""

from pathlib import Path

from schemas.record import Identifier
from trinity_bus.config.section import Section
from trinity_bus.config.values import Seconds


class TelemetrySettings(Section):
    """Spans and metrics without an OTLP endpoint. See docs/telemetry.md."""

    run_dir: Path | None = None
    """Folder of this run: spans go to ``traces/``, metrics to ``metrics/``. Unset: they are not stored."""
    run_id: Identifier | None = None
    """Name of this run, for a telemetry system with several runs. Unset: the name of ``run_dir``."""
    metrics_interval_s: Seconds = 10.0
    """How often metrics are written."""
    record_content: bool = False
    """Whether spans may contain texts of workflow errors, which may quote responses and tasks. Otherwise they have only
    the error's type; the text is in the attempt's result."""
