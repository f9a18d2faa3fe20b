"""Attack 21: the coordinator's memory is bounded in bytes, not in tasks.

4,096 open tasks of 4 MiB are 16 GiB. Tasks of batches that never fill, and a batch of tasks that name none, had no
bound in bytes either.
"""

import random
import tracemalloc
from typing import Any

from aiokafka import ConsumerRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import encode
from schemas.task import Task
from schemas.topics import TASKS
from tests.support.simulation.harness import Harness, batches, dispatches, refusals
from trinity_bus.bus.read.received import receive
from trinity_bus.config import MIN_OPEN_BYTES, CoordinatorSettings
from trinity_bus.coordination.commit_schedule import MAX_TASK_BYTES, CommitSchedule
from trinity_bus.coordination.limits import BATCH_SHARE
from workers.coordinator.pending_commit import PendingCommit, Spans

BUDGET = MIN_OPEN_BYTES
LARGE = "x" * (1 << 20)


def held(harness: Harness) -> int:
    """Bytes of all tasks on the books."""
    return sum(task.size for task in harness.machine.ledger.tasks.values())


def story_of(**fields: Any) -> Harness:
    return Harness(**{"max_open_bytes": BUDGET, "max_staleness": 10**6, "explorer_timeout_s": 10**6, **fields})


def test_reading_stops_at_the_budget_and_goes_on_when_tasks_have_ended() -> None:
    harness = story_of(batch_size=1)
    harness.beat(slots=100)
    number = 0
    running = []
    while harness.machine.wants_tasks():
        running += dispatches(harness.task(f"t{number}", prompt=LARGE))
        number += 1
        assert number < 100, "no budget holds it"
    assert BUDGET <= held(harness) < BUDGET + Task.MAX_BYTES
    harness.restart()
    assert not harness.machine.wants_tasks(), "what is open is known after a restart too"
    for order in running:
        harness.finished(order.task.task_id, batch_id=order.batch_id)
    assert harness.machine.wants_tasks()


def test_batches_that_never_fill_are_given_up_by_bytes() -> None:
    harness = story_of()
    given_up = []
    for number in range(60):
        commands = harness.task(f"t{number}", prompt=LARGE, batch_id=f"b{number}", batch_size=2)
        given_up += [batch.batch_id for batch in batches(commands) if batch.state == "aborted"]
        assert held(harness) <= BUDGET
    assert given_up[:3] == ["b0", "b1", "b2"]
    assert harness.machine.wants_tasks()


def test_one_batch_has_its_part_of_the_budget() -> None:
    harness = story_of()
    refused = [refusals(harness.task(f"t{n}", prompt=LARGE, batch_id="large", batch_size=1000)) for n in range(30)]
    assert refused[-1] == ["batch_too_large"]
    assert held(harness) <= BUDGET // BATCH_SHARE + Task.MAX_BYTES


def test_a_batch_that_nobody_can_give_up_is_full_when_its_bytes_are() -> None:
    harness = story_of(batch_size=1000)
    harness.beat(slots=100)
    started: list[Any] = []
    number = 0
    while not started:
        started = [b for b in batches(harness.task(f"t{number}", prompt=LARGE)) if b.state == "running"]
        number += 1
        assert number < 100, "it waits for a thousand tasks"
    assert started[0].expected_task_count == started[0].accepted_task_count == number
    harness.restart()
    for index in range(number):
        ended = batches(harness.finished(f"t{index}"))
    assert ended[-1].state == "finalized"


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whatever_comes_no_more_than_four_budgets_are_held_and_reading_goes_on(seed: int) -> None:
    """Sizes, kinds and owners of tasks by chance; every restart agrees with the books before it."""
    rng = random.Random(seed)  # noqa: S311 - stories, not secrets
    harness = story_of(batch_size=6, max_open_tasks=1000)
    harness.beat(slots=3)
    harness.submit("open", None)
    waiting = 150
    running: list[Any] = []
    for turn in range(5000):
        if harness.machine.wants_tasks() and waiting:
            waiting -= 1
            kind: dict[str, Any]
            kind = rng.choice([{}, {}, {"batch_id": "open"}, {"batch_id": f"n{rng.randrange(8)}", "batch_size": 3},
                               {"batch_id": "huge", "batch_size": 4000}, {"batch_type": "eval"}])  # fmt: skip
            size = rng.choice([1, 1000, 1 << 20])
            commands = harness.task(f"t{turn}", prompt="x" * size, producer=rng.choice([None, "a", "b"]), **kind)
        elif running:
            order = running.pop(rng.randrange(len(running)))
            fields = {"batch_id": order.batch_id, "batch_type": order.batch_type}
            commands = harness.finished(order.task.task_id, attempt=order.attempt, **fields)
        else:
            break
        running += dispatches(commands)
        assert held(harness) <= 4 * BUDGET
        if rng.random() < 0.02:
            before = harness.machine.ledger
            harness.restart()
            after = harness.machine.ledger
            assert before.usage == after.usage
            assert before.shares.held == after.shares.held
    assert not waiting, "reading has stopped for ever"


def test_a_transaction_is_full_by_bytes_too() -> None:
    """Each task of one is kept as it came, until it is committed."""
    decided = PendingCommit(Spans("ns"))
    raw = encode(Task(task_id="t", workflow="math", prompt=LARGE))
    record = ConsumerRecord("ns.tasks", 0, 0, 0, 0, b"t", raw, None, 0, 0, ())
    schedule = CommitSchedule(tick_s=1.0, heartbeat_s=1.0, now=0.0)
    assert schedule.plan(1.0, wants_tasks=True).tasks
    for _ in range(20):
        _, tasks, task_bytes = decided.take([receive(TASKS, record, TASKS.records)])
        assert (tasks, task_bytes) == (1, len(raw))
        schedule.took(1.0, tasks=tasks, task_bytes=task_bytes)
    assert 20 * len(raw) > MAX_TASK_BYTES
    assert not schedule.plan(2.0, wants_tasks=True).tasks


def test_what_a_budget_is_in_memory() -> None:
    """The figure in the setting's description: bytes of memory for each byte of a task, of plain and of nested ones."""
    for fields, most in (({"prompt": LARGE}, 3.0), ({"prompt": "x", "data": {"n": list(range(30_000))}}, 20.0)):
        harness = story_of(batch_size=1000, max_open_bytes=CoordinatorSettings().max_open_bytes)
        arrived = [harness.arrived(f"t{n}", **fields) for n in range(4)]
        del arrived
        tracemalloc.start()
        for number in range(8):
            # As they come off the log: nothing of them is shared.
            task = Task.model_validate_json(harness.arrived(f"u{number}", **fields).task.model_dump_json())
            harness.machine.handle(harness.arrived(f"v{number}", **task.model_dump(exclude={"task_id"})), 0.0)
        took = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert took / held(harness) < most, f"{took / held(harness):.1f} bytes for each byte"
