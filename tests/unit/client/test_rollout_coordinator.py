import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas import SubmitBatch, Task
from schemas.codec import SchemaError, encode
from schemas.topics import EXPERIENCES, TASKS
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.experiences import make_group
from tests.support.fakes.log import FakeLog
from tests.support.mesh.client_fleet import tasks
from tests.support.mesh.records import record_of
from trinity_bus.client import RolloutCoordinator
from trinity_bus.errors import RefusedError, SendError


@pytest.fixture
async def client(bus: Any, coordinator: FakeCoordinator) -> AsyncIterator[RolloutCoordinator]:
    async with RolloutCoordinator(bus=bus) as client:
        yield client


@pytest.fixture
async def other(bus: Any, coordinator: FakeCoordinator) -> AsyncIterator[RolloutCoordinator]:
    async with RolloutCoordinator(bus=bus) as client:
        yield client


async def test_tasks_are_told_what_batch_they_are_of_whatever_they_said(
    log: FakeLog, coordinator: FakeCoordinator, client: RolloutCoordinator
) -> None:
    given = tasks(3, batch_id="other", batch_type="train", batch_size=9)
    await client.submit_batch(batch_id="1/held-out", tasks=given, batch_type="eval", min_wait_num=2)
    (submitted,) = coordinator.commands
    assert (submitted.batch_id, submitted.expected_task_count, submitted.min_wait_num) == ("1/held-out", 3, 2)
    told = [record_of(received) for received in log.all(TASKS)]
    assert {(task.batch_id, task.batch_type, task.batch_size) for task in told} == {("1/held-out", "eval", 3)}
    assert [received.key for received in log.all(TASKS)] == [task.task_id for task in told]
    assert [task.task_id for task in told] == [f"1/held-out#t{n}" for n in range(3)]
    # The same tasks again, in another batch.
    await client.submit_batch(batch_id="2/held-out", tasks=given, batch_type="eval")
    assert len({record_of(received).task_id for received in log.all(TASKS)}) == 6


async def test_tasks_of_a_batch_are_read_in_the_order_of_their_submission(
    log: FakeLog, client: RolloutCoordinator
) -> None:
    for batch_id in (1, 2, "2/held-out"):
        await client.submit_batch(batch_id=batch_id, tasks=tasks(20), batch_type="train")
        read = [r for r in log.all(TASKS) if record_of(r).batch_id == str(batch_id)]
        assert [record_of(r).task_id for r in read] == [f"{batch_id}#t{n}" for n in range(20)]
        assert len({r.partition for r in read}) == 1, "no reader can mix what is in one partition"
    assert len({r.partition for r in log.all(TASKS)}) == 1, "nor batches, when they are read long after they were sent"


async def test_a_batch_id_may_hold_blanks_and_brackets_and_comes_back_as_it_was_given(
    log: FakeLog, coordinator: FakeCoordinator, client: RolloutCoordinator
) -> None:
    batch_id, name = "2/held out [hard] #1", "2/heldu:20:outu:20:u:5b:hardu:5d:u:20:u:23:1"
    await client.submit_batch(batch_id=batch_id, tasks=tasks(1), batch_type="eval")
    assert {r.key for r in log.all(TASKS)} == {f"{name}#t0"}
    waiting = asyncio.create_task(client.finalize_eval_batch(batch_id))
    await coordinator.finish(f"{name}#t0")
    assert (await waiting)["batch_id"] == batch_id
    # It is known by its name on the log too, which is what people are shown.
    assert (await client.finalize_eval_batch(name))["finished_task_count"] == 1


async def test_a_timeout_of_0_is_none(coordinator: FakeCoordinator, client: RolloutCoordinator) -> None:
    await client.submit_batch(batch_id=1, tasks=tasks(1), batch_type="train")
    waiting = asyncio.create_task(client.finalize_train_batch(1, timeout=0))
    await coordinator.until(lambda: len(coordinator.commands) == 2)
    assert coordinator.commands[1].timeout_s is None
    await coordinator.finish("1#t0")
    assert (await waiting)["finished_task_count"] == 1


async def test_errors_have_texts_that_callers_know(client: RolloutCoordinator, other: RolloutCoordinator) -> None:
    with pytest.raises(KeyError) as unknown:
        await client.finalize_train_batch(3)
    assert unknown.value.args == ("Batch 3 is not registered.",)
    await client.submit_batch(batch_id=3, tasks=tasks(1), batch_type="train")
    for again in (client, other):
        with pytest.raises(ValueError, match=r"^Batch 3 is already active\.$"):
            await again.submit_batch(batch_id=3, tasks=tasks(1), batch_type="train")
    with pytest.raises(ValueError, match=r"^Batch 3 is train, expected eval\.$"):
        await client.finalize_eval_batch("3")
    with pytest.raises(TimeoutError, match=r"^Timeout waiting for batch 3\.$"):
        await client.finalize_train_batch(3, timeout=0.5)
    await client.submit_batch(batch_id="3/e", tasks=tasks(1), batch_type="eval")
    with pytest.raises(ValueError, match=r"^Batch 3/e is eval, expected train\.$"):
        await client.finalize_train_batch("3/e")
    await other.abort_batch(3, reason="enough")
    with pytest.raises(ValueError, match="says the fake"):
        await client.submit_batch(batch_id=3, tasks=tasks(1), batch_type="train")
    await client.abort_batch("never-was", reason="enough")


async def test_ids_that_cannot_be_are_refused_unsent(coordinator: FakeCoordinator, client: RolloutCoordinator) -> None:
    long = Task(task_id="x" * 200, workflow="math", prompt="1")
    wrong: list[tuple[Any, list[Task], str]] = [
        *((batch_id, tasks(1), "cannot be a batch id") for batch_id in ("", -1, "x" * 201, " " * 50)),
        (True, tasks(1), "True"),
        (1, [*tasks(1), *tasks(2)], "'t0' is twice in batch '1'"),
        (1, [long], "too long"),
    ]
    for batch_id, given, why in wrong:
        with pytest.raises(ValueError, match=why):
            await client.submit_batch(batch_id=batch_id, tasks=given, batch_type="train")
    assert coordinator.commands == []


async def test_unsent_tasks_can_be_aborted(
    log: FakeLog, coordinator: FakeCoordinator, client: RolloutCoordinator
) -> None:
    submitting = asyncio.create_task(client.submit_batch(batch_id=1, tasks=tasks(2), batch_type="train"))
    await coordinator.until(lambda: coordinator.commands)
    log.refuse_sends = 2
    with pytest.raises(SendError):
        await submitting
    assert coordinator.batches["1"].state == "pending"
    await client.abort_batch(1, reason="its tasks were not sent")
    assert coordinator.batches["1"].state == "aborted"


async def test_prepare_and_shutdown_may_be_called_twice_and_again(bus: Any, coordinator: FakeCoordinator) -> None:
    client = RolloutCoordinator.get_actor(bus=bus)
    with pytest.raises(RuntimeError, match="not prepared"):
        await client.abort_batch(1, reason="x")
    await client.shutdown()
    for number in (1, 2):
        await asyncio.gather(client.prepare(), client.prepare())
        await client.prepare()
        await client.submit_batch(batch_id=number, tasks=[], batch_type="train")
        await client.shutdown()
        await client.shutdown()
    assert [type(command) for command in coordinator.commands] == [SubmitBatch, SubmitBatch]


async def test_experiences_are_checked_and_contributed(log: FakeLog, bus: Any, coordinator: FakeCoordinator) -> None:
    client = RolloutCoordinator(bus=bus, name="me")
    with pytest.raises(RuntimeError, match=r"^Experience pipeline is not initialized\.$"):
        await client.process_experiences([])
    async with client:
        assert await client.process_experiences([]) == {}
        payloads = [encode(make_group(task_id=f"t{n}", seed=n, version=n)) for n in range(3)]
        with pytest.raises(SchemaError, match="payload 3 of 4 is no experience group"):
            await client.process_experiences([*payloads, b"nothing of the kind"])
        assert log.all(EXPERIENCES) == []
        metrics = await client.process_experiences(payloads)
        assert metrics["experience_pipeline/experience_count"] == 12.0
        times = {f"time/experience_pipeline/{what}" for what in ("write", "total")}
        assert set(metrics) == {"experience_pipeline/experience_count", *times}
        found = {(received.partition, received.offset): record_of(received) for received in log.all(EXPERIENCES)}
        assert {group.explorer for group in found.values()} == {"me"}
        assert sorted(coordinator.contributed) == ["t0", "t1", "t2"]
        for task_id, command in coordinator.contributed.items():
            (piece,) = command.pieces
            assert found[piece.position.partition, piece.position.offset].task_id == task_id
            assert (command.producer, piece.samples) == ("me", 4)
            assert (command.version_min, command.version_max) == (int(task_id[1:]),) * 2
        with pytest.raises(RefusedError, match=r"^1 of 2 contributions are refused: t0: known_task: says the fake$"):
            await client.process_experiences([payloads[0], encode(make_group(task_id="t9"))])
        assert "t9" in coordinator.contributed
