import logging
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.sdk.trace import TracerProvider

from tests.support.fakes.http import Answering, served
from tests.unit.telemetry.test_setup import run
from trinity_bus.telemetry.logs import TraceFormatter, console


def record(text: str, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("workers.explorer", logging.WARNING, __file__, 1, text, None, info)


def test_a_line_of_a_span_ends_with_its_trace() -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    formatter = TraceFormatter("%(name)s: %(message)s")
    with tracer.start_as_current_span("rollout") as span:
        trace = f"[trace {span.get_span_context().trace_id:032x}]"
        assert formatter.format(record("it failed")) == f"workers.explorer: it failed {trace}"
        first, *rest = formatter.format(record("it failed", ValueError("broken"))).splitlines()
    assert first == f"workers.explorer: it failed {trace}"
    assert rest[-1] == "  ValueError: broken"
    assert formatter.format(record("it failed")) == "workers.explorer: it failed"


PROCESS = """
from trinity_bus.telemetry.logs import console

console()
log = logging.getLogger("workers.explorer.executor")
telemetry = setup_telemetry("explorer", settings, instance="explorer-0")
logging.getLogger("opentelemetry.exporter").warning("cannot be sent")
log.debug("not shown")
with trace.get_tracer("test").start_as_current_span("rollout") as span:
    print(f"{span.get_span_context().trace_id:032x}")
    log.warning("task %s failed", "t1")
try:
    raise ValueError("broken")
except ValueError:
    log.exception("it broke")
telemetry.meter_provider.get_meter("test").create_counter("steps").add(1)
telemetry.shutdown()
log.warning("after the end")
print(telemetry.destination)
"""


def test_an_endpoint_takes_all_signals_and_log_lines_have_their_traces(tmp_path: Path) -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(Answering):
        def reply(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.answer(200)

    with served(Collector) as url:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
        done = run(PROCESS, tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    trace_id, destination = done.stdout.splitlines()
    assert destination == f"OTLP endpoint {url}"
    assert list(tmp_path.iterdir()) == []
    sent = {path: [body for to, body in received if to == path] for path, _ in received}
    assert b"rollout" in b"".join(sent["/v1/traces"])
    assert b"steps" in b"".join(sent["/v1/metrics"])
    records, resources = [], []
    for body in sent["/v1/logs"]:
        for resource_logs in ExportLogsServiceRequest.FromString(body).resource_logs:
            resources.append({entry.key: entry.value.string_value for entry in resource_logs.resource.attributes})
            records += [line for scope in resource_logs.scope_logs for line in scope.log_records]
    told = [(line.severity_text, line.body.string_value, line.trace_id.hex()) for line in records]
    assert told == [("WARN", "task t1 failed", trace_id), ("ERROR", "it broke", "")]
    assert {resource["service.name"] for resource in resources} == {"explorer"}
    assert {resource["service.instance.id"] for resource in resources} == {"explorer-0"}
    attributes: dict[str, AnyValue] = {entry.key: entry.value for entry in records[1].attributes}
    assert attributes["exception.type"].string_value == "ValueError"
    assert "Traceback" in attributes["exception.stacktrace"].string_value
    assert f"task t1 failed [trace {trace_id}]" in done.stderr
    assert "after the end" in done.stderr
    assert "cannot be sent" in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("name", ["aiokafka", "megatron"])
def test_libraries_that_print_their_configuration_are_quiet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    console()
    logger = logging.getLogger(f"{name}.core")
    assert logger.getEffectiveLevel() == logging.WARNING
