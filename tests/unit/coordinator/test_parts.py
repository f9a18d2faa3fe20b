import pytest

from schemas import Task
from schemas.codec import decode
from schemas.topic import DLQ_OFFSET, DLQ_PARTITION, DLQ_REASON, DLQ_TOPIC
from schemas.topics import DEAD_LETTERS, TASKS
from tests.support.fakes.received import received
from tests.support.narrowing import some
from tests.support.spans import recorded_spans
from trinity_bus.bus import dead_letter
from trinity_bus.bus.read.received import header
from trinity_bus.coordination import Origin, RejectionReason, RejectTask, TaskArrived
from workers.coordinator.outputs import as_received, pack_positions, unpack_positions
from workers.coordinator.pending_commit import PendingCommit, Spans, sound

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_positions_come_back_as_they_were() -> None:
    positions = {("tasks", 0): 5, ("tasks", 7): 0, ("explorer-events", 3): 2**40}
    assert unpack_positions(pack_positions(positions)) == positions


def test_a_task_refused_long_after_it_was_read_makes_a_whole_dead_letter() -> None:
    task = Task(task_id="late", workflow="nobody-has-it", prompt="1 + 1")
    refused = RejectTask(task, Origin(3, 17), RejectionReason.UNKNOWN_WORKFLOW, "no explorer has it", TRACE)
    key, value, headers = dead_letter(
        as_received(refused), refused.refusal.value, refused.detail, DEAD_LETTERS.max_message_bytes
    )
    assert key == b"late"
    assert value is not None
    assert decode(value, Task) == task
    assert [header(headers, name) for name in (DLQ_REASON, DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, "traceparent")] == [
        "unknown_workflow",
        TASKS.name,
        "3",
        "17",
        TRACE,
    ]


@pytest.mark.parametrize("context", [None, "", "nonsense", TRACE[:-3], TRACE + "-" + "0" * 200, "0" * 10_000])
def test_what_is_no_trace_context_is_not_kept(context: str | None) -> None:
    assert sound(context) is None
    assert sound(TRACE) == TRACE


@pytest.mark.parametrize("traceparent", [TRACE, None])
def test_a_task_has_its_span_whether_or_not_its_sender_traces(
    monkeypatch: pytest.MonkeyPatch, traceparent: str | None
) -> None:
    task = Task(task_id="task-1", workflow="math", prompt="1 + 1")
    with recorded_spans(monkeypatch, "workers.coordinator.pending_commit") as exported, Spans("test") as spans:
        ((arrived,), *_) = PendingCommit(spans).take([received(task, TASKS, 7, partition=1, traceparent=traceparent)])
    assert isinstance(arrived, TaskArrived)
    (span,) = exported.get_finished_spans()
    assert span.name == "process tasks"
    found = some(span.get_span_context())
    trace = f"{found.trace_id:032x}"
    assert arrived.traceparent is not None
    assert arrived.traceparent.split("-")[1] == trace
    assert traceparent is None or (trace == TRACE.split("-")[1] and arrived.traceparent == TRACE)
