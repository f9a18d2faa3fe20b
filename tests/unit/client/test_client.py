import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas import SubmitBatch, Task, TaskResult
from schemas.topics import TASKS
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus
from tests.support.mesh.records import record_of
from trinity_bus.client import BatchHandle, Client
from trinity_bus.errors import NoCoordinatorError, NotStartedError, RefusedError, TimedOutError, UnknownBatchError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def client(bus: Any, coordinator: FakeCoordinator) -> AsyncIterator[Client]:
    async with Client(bus=bus) as client:
        yield client


def tasks(*names: str, **fields: Any) -> list[Task]:
    return [Task(task_id=name, workflow="math", prompt="1 + 1", **fields) for name in names]


async def rest(batch: BatchHandle) -> list[TaskResult]:
    return [result async for result in batch]


async def test_results_come_as_they_count_until_the_last(client: Client, coordinator: FakeCoordinator) -> None:
    batch = await client.submit(tasks("a", "b", "c"), batch_id=1)
    await coordinator.finish("1#b")
    first = await anext(batch)
    assert (first.task_id, first.status, batch.unfinished) == ("b", "completed", 2)
    await coordinator.finish("1#c", "failed", error="broke")
    await coordinator.finish("1#a")
    assert {(result.task_id, result.error) for result in await rest(batch)} == {("c", "broke"), ("a", None)}
    assert await rest(batch) == []
    assert (await batch.result()).finished_task_count == 3


async def test_a_batch_has_its_tasks_type_and_an_own_id(client: Client, coordinator: FakeCoordinator) -> None:
    first = await client.submit(tasks("a", batch_type="eval"))
    second = await client.submit(tasks("a"), min_wait_num=5)
    assert first.batch_id != second.batch_id
    commands = [command for command in coordinator.commands if isinstance(command, SubmitBatch)]
    assert [(c.batch_type, c.expected_task_count, c.min_wait_num) for c in commands] == [
        ("eval", 1, None),
        ("train", 1, 1),
    ]


async def test_what_cannot_be_a_batch_is_refused_unsent(client: Client, coordinator: FakeCoordinator) -> None:
    for wrong in ([], [*tasks("a"), *tasks("b", batch_type="eval")], tasks("a", "a")):
        with pytest.raises(RefusedError):
            await client.submit(wrong)
    assert coordinator.commands == []


async def test_a_task_that_is_refused_has_a_failed_result(client: Client, coordinator: FakeCoordinator) -> None:
    batch = await client.submit(tasks("a", repeat_times=4), batch_id=1)
    await coordinator.refuse("1#a", "too_many_runs")
    (result,) = await rest(batch)
    assert (result.task_id, result.status, result.total_runs, result.attempts) == ("a", "failed", 4, 0)
    assert result.error == "too_many_runs: says the fake"


async def test_experiences_are_joined_in_the_order_of_the_parts(client: Client, coordinator: FakeCoordinator) -> None:
    batch = await client.submit(tasks("a", "b"), batch_id=1)
    await coordinator.finish("1#a", parts=2)
    await coordinator.finish("1#b", "failed")
    good, bad = await rest(batch)
    group = await client.experiences(good)
    assert group is not None
    assert len(group) == sum(part.samples for part in good.parts)
    assert await client.experiences(bad) is None


async def test_an_aborted_batch_ends_its_iteration(client: Client, coordinator: FakeCoordinator) -> None:
    batch = await client.submit(tasks("a", "b"), batch_id=1)
    await coordinator.finish("1#a")
    await coordinator.until(lambda: "1#b" in coordinator.tasks)
    await batch.abort("enough")
    assert [result.status for result in await rest(batch)] == ["completed", "aborted"]
    assert (await batch.result()).state == "aborted"


async def test_time_that_is_up_costs_nothing(client: Client, coordinator: FakeCoordinator) -> None:
    batch = await client.submit(tasks("a"), batch_id=1)
    with pytest.raises(TimeoutError) as told:
        await batch.result(timeout=0.1)
    assert isinstance(told.value, TimedOutError)
    await coordinator.finish("1#a")
    assert (await batch.result()).finished_task_count == 1


async def test_a_batch_that_is_forgotten_is_a_key_error(client: Client, coordinator: FakeCoordinator) -> None:
    batch = await client.submit(tasks("a"), batch_id=1)
    coordinator.batches.clear()
    with pytest.raises(KeyError, match="Batch 1 is not registered") as told:
        await batch.result()
    assert isinstance(told.value, UnknownBatchError)
    assert str(told.value) == "Batch 1 is not registered."


async def test_whoever_waits_is_told_that_the_client_was_stopped(client: Client) -> None:
    batch = await client.submit(tasks("a"), batch_id=1)
    waiting = asyncio.create_task(rest(batch))
    await asyncio.sleep(0)
    await client.stop()
    with pytest.raises(NotStartedError):
        await waiting
    with pytest.raises(NotStartedError, match="start"):
        await client.submit(tasks("a"))


async def test_a_batch_that_is_submitted_amid_a_stop_fails_at_once(
    client: Client, coordinator: FakeCoordinator
) -> None:
    closing = asyncio.Event()
    client.connection.stack.push_async_callback(closing.wait)
    coordinator.deaf = True
    submitting = asyncio.create_task(client.submit(tasks("a"), batch_id=1))
    await coordinator.until(lambda: coordinator.commands)
    stopping = asyncio.create_task(client.stop())
    await asyncio.sleep(0)
    await coordinator._carry_out(coordinator.commands[0])
    with pytest.raises(NotStartedError, match="the batch goes on"):
        await anext(await submitting)
    closing.set()
    await stopping


async def test_tasks_may_be_sent_with_no_batch(client: Client, bus: FakeBus) -> None:
    assert await client.send(tasks("a", "b")) == 2
    async with bus.reader(TASKS, start="beginning") as reader:
        sent = [record_of(received) async for received in reader.replay()]
    assert {(task.task_id, task.batch_id, task.producer) for task in sent} == {
        ("a", None, "client"),
        ("b", None, "client"),
    }


async def test_a_wait_asks_whether_a_coordinator_is_there(
    client: Client, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity_bus.client.client.SILENCE_S", 0.01)
    client.connection.channel._silence_s, client.connection.channel._again_s = 0.2, 0.05
    batch = await client.submit(tasks("a"), batch_id=1)
    coordinator.deaf = True
    with pytest.raises(NoCoordinatorError):
        await anext(batch)
    coordinator.deaf = False
    await coordinator.finish("1#a")
    assert [result.task_id for result in await rest(batch)] == ["a"]
