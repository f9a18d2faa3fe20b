"""Which traces the collector keeps: its real configuration, in its real container, with a sink in place of Jaeger."""

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode

from tests.support.mesh.compose import defaults, docker
from tests.support.mesh.compose_files import FOLDER
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

LIMIT_S = 60.0


class Sink:
    """Takes spans over OTLP; knows their names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        names = self.names

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        names.update(span.name for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.close()


@pytest.fixture
def collector(stack_images: object, sink: Sink, tmp_path: Path) -> Iterator[str]:
    """The address at which it takes spans. On the machine's own network, on loopback, to reach the sink."""
    port, health, metrics = quiet_ports(3)
    override = tmp_path / "here.yaml"
    override.write_text(
        yaml.safe_dump(
            {
                "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
                "exporters": {
                    "otlp_http/sink": {"endpoint": f"http://127.0.0.1:{sink.server.server_port}"},
                    "prometheus": {"endpoint": f"127.0.0.1:{metrics}"},
                },
                "extensions": {"health_check": {"endpoint": f"127.0.0.1:{health}"}},
                "service": {
                    "telemetry": {"metrics": {"level": "none", "readers": []}},
                    "pipelines": {"traces": {"exporters": ["otlp_http/sink"]}},
                },
            }
        )
    )
    override.chmod(0o644)
    tmp_path.chmod(0o755)
    variables = ("TRACE_DECISION_WAIT=2s", "TRACE_SLOW_S=2", "TRACE_PERCENTAGE=0")
    started = docker(
        *("run", "--detach", "--rm", "--network", "host", *(part for each in variables for part in ("--env", each))),
        *("--volume", f"{FOLDER / 'otel-collector.yaml'}:/config.yaml:ro", "--volume", f"{override}:/here.yaml:ro"),
        *(defaults()["OTEL_COLLECTOR_IMAGE"], "--config=/config.yaml", "--config=/here.yaml"),
    )
    assert started.returncode == 0, started.stderr
    container = started.stdout.strip()
    try:
        wait_until(
            lambda: "Everything is ready" in docker("logs", container).stderr, "start of the collector", LIMIT_S, 0.2
        )
        yield f"http://127.0.0.1:{port}/v1/traces"
    finally:
        docker("rm", "--force", container)


class Traces:
    """Sends traces of two spans each, some of them made up to have taken long."""

    def __init__(self, endpoint: str) -> None:
        self.provider = TracerProvider(resource=Resource.create({"service.name": "test"}), shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self.tracer = self.provider.get_tracer("test")

    def send(
        self,
        name: str,
        *,
        parent: Context | None = None,
        root: dict[str, int] | None = None,
        child: dict[str, int] | None = None,
        error: bool = False,
        child_s: float = 0.1,
    ) -> Context:
        begin = time.time_ns()
        span = self.tracer.start_span(name, context=parent or Context(), attributes=root, start_time=begin)
        below = self.tracer.start_span(
            f"{name}, below", context=trace.set_span_in_context(span), attributes=child, start_time=begin
        )
        if error:
            below.set_status(Status(StatusCode.ERROR, "it broke"))
        below.end(begin + round(child_s * 1e9))
        span.end(begin + 1000)
        self.provider.force_flush()
        return trace.set_span_in_context(span)


def test_failures_slow_attempts_and_steps_are_kept_whole(collector: str, sink: Sink) -> None:
    traces = Traces(collector)
    traces.send("failed", error=True)
    traces.send("slow", child={"rl.attempt": 1}, child_s=9)
    step = traces.send("step", root={"rl.step": 0})
    ordinary = traces.send("ordinary")
    traces.send("waited for its turn", child_s=9)
    kept = {name for kind in ("failed", "slow", "step") for name in (kind, f"{kind}, below")}
    wait_until(lambda: kept <= sink.names, "traces that are to be kept", LIMIT_S, 0.1)
    # A later part of a trace that was judged: what became of the first becomes of it.
    traces.send("sync", parent=step)
    traces.send("too late to fail", parent=ordinary, error=True)
    traces.send("last", error=True)
    wait_until(lambda: {"sync", "sync, below", "last"} <= sink.names, "what came later", LIMIT_S, 0.1)
    traces.provider.shutdown()
    assert sink.names == kept | {"sync", "sync, below", "last", "last, below"}
