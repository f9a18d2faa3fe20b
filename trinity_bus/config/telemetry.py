"""The section ``telemetry``: where spans and metrics go without an OTLP endpoint."""

from pathlib import Path

from schemas.record import Identifier
from trinity_bus.config.section import Section
from trinity_bus.config.values import Seconds


class TelemetrySettings(Section):
    """Where spans and metrics go without an OTLP endpoint."""

    run_dir: Path | None = None
    """Folder of this run: spans go to ``traces/``, metrics to ``metrics/``. Unset: they are not kept."""
    run_id: Identifier | None = None
    """Name of this run in the telemetry of a system that sees several. Unset: the name of ``run_dir``."""
    metrics_interval_s: Seconds = 10.0
    """How often metrics are written."""
    record_content: bool = False
    """Whether spans may tell what workflows say in their errors, which may quote what a model has answered, and
    whatever a task holds. Otherwise they tell the type of such an error alone; the attempt's result has its text."""
