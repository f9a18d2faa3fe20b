"""Whether a transaction may wait for company."""

import pytest

from schemas import BatchLifecycleState, BatchRecord, Cancel, Task
from trinity_bus.coordination import Effect, Observe, Origin, PublishBatch, RejectionReason, RejectTask, SendOrder
from trinity_bus.coordination.effects import Fact
from workers.coordinator.pending_commit import PendingCommit
from workers.coordinator.spans import Spans


def moved(state: BatchLifecycleState) -> PublishBatch:
    return PublishBatch(BatchRecord(batch_id="b", batch_type="train", state=state, sequence=1, expected_task_count=2))


TASK = Task(task_id="t", workflow="math", prompt="1 + 1?", answer="2")
ORDER = SendOrder(Cancel(explorer="e", incarnation="i", task_id="t", attempt=1, reason="batch ended"), None)
NOBODY_WAITS = (
    moved(BatchLifecycleState.PENDING),
    Observe(Fact.EXPLORER_JOINED, "e"),
    RejectTask(TASK, Origin(0, 0), RejectionReason.DUPLICATE_TASK, "", None),
)


@pytest.mark.parametrize(
    ("effects", "awaited"),
    [
        ((), False),
        (NOBODY_WAITS, False),
        ((ORDER,), True),
        ((*NOBODY_WAITS, ORDER, *NOBODY_WAITS), True),
        *(((moved(state),), state is not BatchLifecycleState.PENDING) for state in BatchLifecycleState),
    ],
)
def test_only_what_somebody_waits_for_makes_it_go_at_once(effects: tuple[Effect, ...], awaited: bool) -> None:
    pending = PendingCommit(Spans("namespace"))
    pending.add(effects)
    assert pending.is_awaited is awaited
    assert pending.effects == list(effects)
