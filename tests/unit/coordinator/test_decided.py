"""Whether a transaction may wait for company."""

import pytest

from schemas import BatchLifecycleState, BatchRecord, Cancel, Task
from trinity_bus.coordination import BatchMoved, Command, Observe, Order, Origin, Refusal, Refuse
from trinity_bus.coordination.commands import Fact
from workers.coordinator.decided import Decided
from workers.coordinator.spans import Spans


def moved(state: BatchLifecycleState) -> BatchMoved:
    return BatchMoved(BatchRecord(batch_id="b", batch_type="train", state=state, sequence=1, expected_task_count=2))


TASK = Task(task_id="t", workflow="math", prompt="1 + 1?", answer="2")
ORDER = Order(Cancel(explorer="e", incarnation="i", task_id="t", attempt=1, reason="batch ended"), None)
NOBODY_WAITS = (
    moved(BatchLifecycleState.PENDING),
    Observe(Fact.EXPLORER_JOINED, "e"),
    Refuse(TASK, Origin(0, 0), Refusal.DUPLICATE_TASK, "", None),
)


@pytest.mark.parametrize(
    ("commands", "awaited"),
    [
        ((), False),
        (NOBODY_WAITS, False),
        ((ORDER,), True),
        ((*NOBODY_WAITS, ORDER, *NOBODY_WAITS), True),
        *(((moved(state),), state is not BatchLifecycleState.PENDING) for state in BatchLifecycleState),
    ],
)
def test_only_what_somebody_waits_for_makes_it_go_at_once(commands: tuple[Command, ...], awaited: bool) -> None:
    decided = Decided(Spans("namespace"))
    decided.add(commands)
    assert decided.is_awaited is awaited
    assert decided.commands == list(commands)
