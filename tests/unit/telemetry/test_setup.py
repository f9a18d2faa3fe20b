import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.metrics import NoOpMeter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from trinity_bus.config import TelemetrySettings
from trinity_bus.errors import ConfigError
from trinity_bus.telemetry import load_spans, parent_context, traceparent
from trinity_bus.telemetry.setup import build_telemetry
from trinity_bus.telemetry.spans import SpanRecord


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def run(code: str, *arguments: object, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own: providers are set once in each."""
    command = [sys.executable, "-W", "error", "-c", f"{START}\n{code}", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


START = """
import logging, os, signal, sys, time
from pathlib import Path
from opentelemetry import trace
from trinity_bus.config import TelemetrySettings
from trinity_bus.telemetry import setup, setup_telemetry
settings = TelemetrySettings(run_dir=Path(sys.argv[1]) if sys.argv[1:] else None)
"""


def test_spans_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    run = tmp_path / "run-1"
    telemetry = build_telemetry("explorer", TelemetrySettings(run_dir=run), namespace="team-a", instance="explorer-0")
    tracer = telemetry.tracer_provider.get_tracer("test")
    other = tracer.start_span("other", start_time=1)
    other.end(2)
    with tracer.start_as_current_span("parent", kind=SpanKind.CONSUMER, links=[Link(other.get_span_context())]) as span:
        child = tracer.start_span(
            "child", start_time=3, attributes={"s": "text", "i": 1 << 60, "f": 0.5, "b": True, "l": ["a", "b"]}
        )
        child.set_status(Status(StatusCode.ERROR, "it broke"))
        child.add_event("happened", {"x": 1})
        child.end(1_000_000_003)
    telemetry.shutdown()
    telemetry.shutdown()
    (path,) = (run / "traces").iterdir()
    assert path.name == f"explorer-{os.getpid()}.jsonl"
    assert telemetry.destination == str(path)
    spans = {found.name: found for found in load_spans(run)}
    assert list(spans) == ["other", "child", "parent"], "in the order of their start"
    assert spans["child"] == SpanRecord(
        trace_id=f"{span.get_span_context().trace_id:032x}", span_id=f"{child.get_span_context().span_id:016x}",
        parent_id=f"{span.get_span_context().span_id:016x}", name="child", service="explorer", instance="explorer-0",
        start_ns=3, end_ns=1_000_000_003, error="it broke",
        attributes={"s": "text", "i": 1 << 60, "f": 0.5, "b": True, "l": ["a", "b"]},
    )  # fmt: skip
    assert spans["child"].seconds == 1.0
    assert spans["parent"].parent_id is None
    assert spans["parent"].error is None
    assert spans["parent"].links == ((spans["other"].trace_id, spans["other"].span_id),)
    resource = json.loads(path.read_text().splitlines()[0])["resourceSpans"][0]["resource"]["attributes"]
    attributes = {entry["key"]: entry["value"]["stringValue"] for entry in resource}
    assert attributes["service.namespace"] == "team-a"
    assert attributes["service.instance.id"] == "explorer-0"
    assert attributes["trinity.run.id"] == "run-1"


def test_a_torn_line_costs_that_line_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    telemetry = build_telemetry("explorer", TelemetrySettings(run_dir=tmp_path))
    for name in ("one", "two"):
        telemetry.tracer_provider.get_tracer("test").start_span(name).end()
    telemetry.shutdown()
    (path,) = (tmp_path / "traces").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"\n") + 40])
    (tmp_path / "traces" / "a.jsonl").write_text('{"resourceSpans": 3}\n[]\n')
    assert [span.name for span in load_spans(tmp_path)] == ["one"]
    assert len([record for record in caplog.records if "passed over" in record.getMessage()]) == 3


def test_metrics_go_to_a_file(tmp_path: Path) -> None:
    telemetry = build_telemetry("trainer", TelemetrySettings(run_dir=tmp_path))
    telemetry.meter_provider.get_meter("test").create_counter("steps").add(3, {"k": "v"})
    telemetry.shutdown()
    (path,) = (tmp_path / "metrics").iterdir()
    metrics = json.loads(path.read_text())["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    assert metrics[0]["name"] == "steps"
    assert metrics[0]["data"]["data_points"][0]["value"] == 3


def test_without_a_place_nothing_is_kept_and_a_context_is_passed_on_as_it_came() -> None:
    telemetry = build_telemetry("explorer", TelemetrySettings())
    tracer, parent = telemetry.tracer_provider.get_tracer("test"), f"00-{7:032x}-{9:016x}-01"
    span = tracer.start_span("x", context=parent_context(parent), attributes={"a": 1})
    assert (span.is_recording(), traceparent(span)) == (False, parent)
    assert traceparent(tracer.start_span("x", context=parent_context(None))) is None
    telemetry.meter_provider.get_meter("test").create_counter("steps").add(1)
    telemetry.shutdown()
    assert telemetry.destination == "nowhere"


AGAINST_A_BLACK_HOLE = """
setup.SHUTDOWN_S = 0.5
logging.basicConfig(level=logging.INFO)
telemetry = setup_telemetry("explorer", settings)
telemetry.meter_provider.get_meter("test").create_counter("steps").add(1)
logging.getLogger("workers").info("a line")
try:
    for number in range(2000):
        telemetry.tracer_provider.get_tracer("test").start_span("span").end()
    raise SystemExit(3)
finally:
    began = time.monotonic()
    telemetry.shutdown()
    telemetry.shutdown()
    print(time.monotonic() - began)
"""


def test_a_collector_that_never_answers_delays_the_end_by_the_limit_and_costs_no_exit_code() -> None:
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{black_hole.getsockname()[1]}"}
        # Far below the exporters' own limit of ten seconds for each batch, of which there are six.
        done = run(AGAINST_A_BLACK_HOLE, environment=environment)
    assert done.returncode == 3, done.stderr
    assert 0.5 <= float(done.stdout) < 5.0
    (line,) = [line for line in done.stderr.splitlines() if "lost" in line]
    assert "the last traces, metrics, log lines were not exported within 0.5 s and are lost" in line
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] in line


def test_a_protocol_that_is_not_spoken_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL='grpc': only http/protobuf is spoken"):
        build_telemetry("explorer", TelemetrySettings())


def test_what_a_signal_has_of_its_own_counts_before_what_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_ENDPOINT='localhost:4318': expected a URL"):
        build_telemetry("explorer", TelemetrySettings())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    for signal in ("METRICS", "LOGS"):
        monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "none")
    telemetry = build_telemetry("explorer", TelemetrySettings())
    assert telemetry.destination == "OTLP endpoint http://127.0.0.1:4318/v1/traces"
    assert telemetry.logs is None
    assert isinstance(telemetry.meter_provider.get_meter("m"), NoOpMeter)
    telemetry.shutdown()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert build_telemetry("explorer", TelemetrySettings()).destination == "nowhere"


def test_the_process_has_one_set_up_and_late_comers_share_it(tmp_path: Path) -> None:
    """A library that sets a provider of its own afterwards, as inference engines do, traces into ours."""
    code = """
from opentelemetry.sdk.trace import TracerProvider
from trinity_bus.errors import TrinityError
from trinity_bus.telemetry.metrics import DEAD_LETTERS

early = trace.get_tracer("made before the set-up")
telemetry = setup_telemetry("explorer", settings)
trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
trace.get_tracer("library").start_span("llm_request").end()
early.start_span("early").end()
DEAD_LETTERS.add(1)
try:
    setup_telemetry("explorer", TelemetrySettings())
except TrinityError as error:
    print(error)
telemetry.shutdown()
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("telemetry is set up already")
    assert sorted(span.name for span in load_spans(tmp_path)) == ["early", "llm_request"]
    (metrics,) = (tmp_path / "metrics").iterdir()
    assert "trinity.dead_letters" in metrics.read_text()


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    code = """
telemetry = setup_telemetry("explorer", settings)
for number in range(2000):
    telemetry.tracer_provider.get_tracer("test").start_span(f"span {number}").end()
    if number == 1000:
        telemetry.tracer_provider.force_flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(code, tmp_path).returncode == -9
    assert len(load_spans(tmp_path)) >= 1001


def test_without_a_span_there_is_no_file(tmp_path: Path) -> None:
    assert load_spans(tmp_path) == []
    build_telemetry("a", TelemetrySettings(run_dir=tmp_path)).shutdown()
    assert list(tmp_path.iterdir()) == []
