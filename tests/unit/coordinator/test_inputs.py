import pytest

from schemas import Task
from schemas.topics import TASKS
from tests.support.fakes.received import received
from tests.support.narrowing import some
from tests.support.spans import recorded_spans
from trinity_bus.coordination.inputs import TaskArrived
from workers.coordinator.pending_commit import inputs_of
from workers.coordinator.spans import Spans

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("traceparent", [SENT, None])
def test_a_task_has_its_span_whether_or_not_its_sender_traces(
    monkeypatch: pytest.MonkeyPatch, traceparent: str | None
) -> None:
    task = Task(task_id="task-1", workflow="math", prompt="1 + 1")
    with recorded_spans(monkeypatch, "workers.coordinator.spans") as exported, Spans("test") as spans:
        (arrived,) = inputs_of([received(task, TASKS, 7, partition=1, traceparent=traceparent)], spans)
    assert isinstance(arrived, TaskArrived)
    (span,) = exported.get_finished_spans()
    assert span.name == "process tasks"
    found = some(span.get_span_context())
    trace = f"{found.trace_id:032x}"
    assert arrived.traceparent is not None
    assert arrived.traceparent.split("-")[1] == trace
    assert traceparent is None or (trace == SENT.split("-")[1] and arrived.traceparent == SENT)
