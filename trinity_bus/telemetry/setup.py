"""OpenTelemetry's SDK for this process: where spans, metrics and log lines go, and that they get there.

With an OTLP endpoint in the standard variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, or that of one signal), they are sent
there as http/protobuf; else spans and metrics go to files of the run's folder, if there is one; else nothing is
measured at all, and trace contexts are passed on as they came. The providers are process-wide and may be set once, so
this comes before any library that would set its own, such as an inference engine: whatever is traced through the global
provider then lands in the same place.

A process whose errors may quote a model's answer, or a task, has discreet spans. OpenTelemetry notes an exception that
ends a span with its message and its traceback, as an event and as the status. What is left of these is the type of the
exception, and that there was an error.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Meter, NoOpMeter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracer, Status, Tracer

from trinity_bus import awake
from trinity_bus.config import TelemetrySettings
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.generative import CONTENT
from trinity_bus.telemetry.logs import LogExport
from trinity_bus.telemetry.spans import TRACES, metric_lines, span_lines

log = logging.getLogger(__name__)

METRICS = "metrics"  # the folder of a run that has its metrics, a file for each process
FILE_DELAY_MS = 500  # how long a span waits to be written to a file: what a killed process can lose
SHUTDOWN_S = 5.0  # of the end of telemetry; the exporters' own limits are ten seconds for each batch that they hold
_HTTP = "http/protobuf"


class _NoTraces(TracerProvider):
    # Without spans: building one costs as much as handling a record, and nobody would see it.
    def get_tracer(self, *_args: Any, **_more: Any) -> Tracer:
        return NoOpTracer()


class _NoMetrics(MeterProvider):
    # Counts nothing, for the same reason.
    def get_meter(self, name: str, *_args: Any, **_more: Any) -> Meter:
        return NoOpMeter(name)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The process's providers. Call :meth:`shutdown` last, so that nothing is lost."""

    tracer_provider: TracerProvider
    meter_provider: MeterProvider
    destination: str  # where spans go, for people
    logs: LogExport | None  # where log lines are exported

    def shutdown(self) -> None:
        """Write or send what is held back, then stop. Safe to call twice."""
        # Returns after :data:`SHUTDOWN_S` at the latest. What its destination has not taken by then is lost, and one
        # line of the log says so.
        ends: dict[str, Callable[[], None]] = {
            "traces": self.tracer_provider.shutdown,
            # Longer than it is waited for: one that gave up at the same moment would seem to have ended well.
            "metrics": lambda: self.meter_provider.shutdown(2 * SHUTDOWN_S * 1000),
        }
        if self.logs is not None:
            ends["log lines"] = self.logs.close
        late = _not_ended(ends, SHUTDOWN_S)
        if late:
            log.warning(
                "the last %s were not exported within %g s and are lost; %s does not take them",
                ", ".join(late),
                SHUTDOWN_S,
                self.destination,
            )


def _not_ended(ends: Mapping[str, Callable[[], None]], limit_s: float) -> list[str]:
    # Run all at once, and name those that take longer than the limit: they are left behind in threads that do not keep
    # the process, because the SDK cannot be told to give up an export.
    threads = {what: threading.Thread(target=end, name=f"end of {what}", daemon=True) for what, end in ends.items()}
    deadline = awake.now() + limit_s
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        awake.join(thread, deadline - awake.now())
    return [what for what, thread in threads.items() if thread.is_alive()]


def destination_configured(settings: TelemetrySettings) -> bool:
    # Whether spans go anywhere at all.
    return _endpoint("TRACES") is not None or settings.run_dir is not None


def setup_telemetry(
    service_name: str,
    settings: TelemetrySettings,
    *,
    namespace: str = "trinity",
    instance: str | None = None,
    discreet: bool = False,
) -> Telemetry:
    """Set the process's tracer and meter providers, and begin to export its log lines where they are to be.

    Args:
        service_name: What this process is, such as ``"explorer"``.
        settings: Where files go without an endpoint.
        namespace: That of the mesh, to tell several apart.
        instance: Which of several of its kind it is, such as ``"explorer-0"``; host and process id where absent.
        discreet: Whether errors in spans of this process may quote what a model has answered: their texts are left out
            then, unless ``telemetry.record_content`` is set.

    Raises:
        ConfigError: The endpoint is no URL, or the protocol is one that is not spoken here.
        TrinityError: The providers of this process are set already.
    """
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        raise TrinityError(
            "telemetry is set up already: call setup_telemetry once, before any library that does so itself"
        )
    CONTENT.on = settings.record_content
    discreet = discreet and not settings.record_content
    telemetry = build_telemetry(service_name, settings, namespace=namespace, instance=instance, discreet=discreet)
    trace.set_tracer_provider(telemetry.tracer_provider)
    metrics.set_meter_provider(telemetry.meter_provider)
    tell_start()
    if telemetry.logs is not None:
        telemetry.logs.begin()
    return telemetry


def tell_start() -> None:
    # To be called once.
    started_at = time.time()
    metrics.get_meter("trinity_bus").create_observable_gauge(
        "trinity.process.start_time",
        [lambda _options: [Observation(started_at)]],
        unit="s",
        description="When this process was set up, since the Unix epoch. It changes with every restart.",
    )


def build_telemetry(
    service_name: str,
    settings: TelemetrySettings,
    *,
    namespace: str = "trinity",
    instance: str | None = None,
    discreet: bool = False,
) -> Telemetry:
    """Like :func:`setup_telemetry`, without making the providers those of the process."""
    instance_id = instance or f"{socket.gethostname()}-{os.getpid()}"
    attributes = {
        names.SERVICE_NAME: service_name,
        names.SERVICE_NAMESPACE: namespace,
        names.SERVICE_INSTANCE_ID: instance_id,
    }
    run_id = settings.run_id or (settings.run_dir.name if settings.run_dir is not None else None)
    if run_id is not None:
        attributes[names.TRINITY_RUN_ID] = run_id
    resource = Resource.create(attributes)
    run_dir, file_name = settings.run_dir, f"{service_name}-{os.getpid()}.jsonl"
    destination, span_exporter = _exporter("TRACES", OTLPSpanExporter, span_lines, run_dir, Path(TRACES) / file_name)
    _, metric_exporter = _exporter("METRICS", OTLPMetricExporter, metric_lines, run_dir, Path(METRICS) / file_name)
    return Telemetry(
        _tracer_provider(resource, span_exporter, discreet=discreet),
        _meter_provider(resource, metric_exporter, settings.metrics_interval_s),
        destination,
        None if _checked_endpoint("LOGS") is None else LogExport(resource),
    )


def _given(signal: str, name: str) -> tuple[str, str | None]:
    # The variable that counts for a signal, and its value: its own, before that of all.
    names = f"OTEL_EXPORTER_OTLP_{signal}_{name}", f"OTEL_EXPORTER_OTLP_{name}"
    return next(((one, value) for one in names if (value := os.environ.get(one))), (names[1], None))


def _endpoint(signal: str) -> str | None:
    turned_off = os.environ.get("OTEL_SDK_DISABLED", "").lower(), os.environ.get(f"OTEL_{signal}_EXPORTER", "").lower()
    return None if turned_off[0] == "true" or turned_off[1] == "none" else _given(signal, "ENDPOINT")[1]


def _checked_endpoint(signal: str) -> str | None:
    # Raises ConfigError where it is no URL, or the protocol is one that is not spoken here.
    endpoint, (variable, protocol) = _endpoint(signal), _given(signal, "PROTOCOL")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"{_given(signal, 'ENDPOINT')[0]}={endpoint!r}: expected a URL, as http://localhost:4318")
    if endpoint is not None and protocol not in (None, _HTTP):
        raise ConfigError(f"{variable}={protocol!r}: only {_HTTP} is spoken; collectors take it on port 4318")
    return endpoint


def _exporter[E: SpanExporter | MetricExporter](
    signal: str, otlp: Callable[[], E], file: Callable[[Path], E], run_dir: Path | None, path: Path
) -> tuple[str, E | None]:
    # Where a signal goes, in words and as an exporter.
    endpoint = _checked_endpoint(signal)
    if endpoint is not None:
        return f"OTLP endpoint {endpoint}", otlp()
    if run_dir is not None:
        return str(run_dir / path), file(run_dir / path)
    return "nowhere", None


def _tracer_provider(resource: Resource, exporter: SpanExporter | None, *, discreet: bool) -> TracerProvider:
    # Shut down by its owner, who knows when the last span has ended.
    if exporter is None:
        return _NoTraces(shutdown_on_exit=False)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    sink = DiscreetSpanExporter(exporter) if discreet else exporter
    delay_ms = FILE_DELAY_MS if isinstance(exporter, ConsoleSpanExporter) else None
    provider.add_span_processor(BatchSpanProcessor(sink, schedule_delay_millis=delay_ms))
    return provider


def _meter_provider(resource: Resource, exporter: MetricExporter | None, interval_s: float) -> MeterProvider:
    if exporter is None:
        return _NoMetrics(shutdown_on_exit=False)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=interval_s * 1000)
    return MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)


_EXCEPTION = "exception"
_TYPE = "exception.type"


class DiscreetSpanExporter(SpanExporter):
    """Passes spans on without the texts of errors."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([_without_texts(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _without_texts(span: ReadableSpan) -> ReadableSpan:
    if not span.status.description and not any(event.name == _EXCEPTION for event in span.events):
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[_type_alone(event) if event.name == _EXCEPTION else event for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _type_alone(event: Event) -> Event:
    kept = {name: value for name, value in (event.attributes or {}).items() if name == _TYPE}
    return Event(event.name, kept, event.timestamp)
