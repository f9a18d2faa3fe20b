import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from schemas import Task
from tests.support.fakes.log_records import LogRecords
from tests.support.narrowing import some
from trinity_bus.coordination.inputs import TaskArrived
from workers.coordinator import spans as spans_of_coordinator
from workers.coordinator.inputs import inputs_of
from workers.coordinator.spans import Spans

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("traceparent", [SENT, None])
def test_a_task_has_a_span_whoever_sends_it(monkeypatch: pytest.MonkeyPatch, traceparent: str | None) -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(spans_of_coordinator, "_TRACER", provider.get_tracer("test"))
    task = Task(task_id="task-1", workflow="math", prompt="1 + 1")
    received = LogRecords().add(task, 0, partition=1, traceparent=traceparent)
    with Spans("test") as spans:
        (arrived,) = inputs_of([received], spans)
    assert isinstance(arrived, TaskArrived)
    (span,) = exported.get_finished_spans()
    assert span.name == "process tasks"
    found = some(span.get_span_context())
    trace = f"{found.trace_id:032x}"
    assert arrived.traceparent is not None
    assert arrived.traceparent.split("-")[1] == trace
    assert traceparent is None or (trace == SENT.split("-")[1] and arrived.traceparent == SENT)
