"""A service that is not there: sends metrics of its own making to the stack's collector, for what no test can bring
about in a real one, such as another machine's bad memory."""

from types import TracebackType
from typing import Self

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tests.support.mesh.prometheus_names import instruments, series


class PretendService:
    """Sends until it is left; a context manager."""

    def __init__(self, otlp_url: str, name: str) -> None:
        names = {"name": name, "namespace": "trinity", "instance.id": "pretended"}
        resource = Resource.create({f"service.{key}": value for key, value in names.items()})
        exporter = OTLPMetricExporter(endpoint=f"{otlp_url}/v1/metrics")
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=2000)
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("tests")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._provider.shutdown()

    def set(self, name: str, value: float, **attributes: str) -> None:
        self._meter.create_gauge(name, self._unit_of(name)).set(value, _dotted(attributes))
        self._provider.force_flush()

    def add(self, name: str, value: float, **attributes: str) -> None:
        self._meter.create_counter(name, self._unit_of(name)).add(value, _dotted(attributes))
        self._provider.force_flush()

    @staticmethod
    def series(name: str) -> str:
        """What a metric of one value is called in Prometheus."""
        (found,) = {made for kind, known, unit in instruments() if known == name for made in series(kind, known, unit)}
        return found

    @staticmethod
    def _unit_of(name: str) -> str:
        """Only what the real services send can be pretended."""
        (unit,) = {unit for _, known, unit in instruments() if known == name}
        return unit


def _dotted(attributes: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in attributes.items()}
