"""``Client`` over a fake log in memory with a fake coordinator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

import pytest

from schemas import SubmitBatch, Task, TaskResult
from schemas.topics import TASKS
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus, FakeLog
from trinity_bus.client import BatchHandle, Client
from trinity_bus.errors import NoCoordinatorError, NotStartedError, RefusedError, TimedOutError, UnknownBatchError


class Mesh:
    """A client, its fake coordinator and the log between them."""

    def __init__(self) -> None:
        self.bus: Any = FakeBus(FakeLog())
        self.coordinator = FakeCoordinator(self.bus)
        self.client = Client(bus=cast("Any", self.bus))


type Story = Callable[[Mesh], Coroutine[Any, Any, None]]


def in_a_mesh(story: Story) -> Callable[[], Coroutine[Any, Any, None]]:
    """Runs it in a mesh, with a limit."""

    async def told() -> None:
        mesh = Mesh()
        async with asyncio.timeout(20), mesh.coordinator.running(), mesh.client:
            await story(mesh)

    return told


def tasks(*names: str, **fields: Any) -> list[Task]:
    return [Task(task_id=name, workflow="math", prompt="1 + 1", **fields) for name in names]


async def rest(batch: BatchHandle) -> list[TaskResult]:
    return [result async for result in batch]


@in_a_mesh
async def test_results_come_as_they_count_and_the_iteration_ends_with_the_last(mesh: Mesh) -> None:
    batch = await mesh.client.submit(tasks("a", "b", "c"), batch_id=1)
    await mesh.coordinator.finish("1#b")
    first = await anext(batch)
    assert (first.task_id, first.status, batch.unfinished) == ("b", "completed", 2)
    await mesh.coordinator.finish("1#c", "failed", error="broke")
    await mesh.coordinator.finish("1#a")
    assert {(result.task_id, result.error) for result in await rest(batch)} == {("c", "broke"), ("a", None)}
    assert await rest(batch) == []
    assert (await batch.result()).finished_task_count == 3


@in_a_mesh
async def test_the_batch_is_of_its_tasks_type_and_has_an_id_of_its_own(mesh: Mesh) -> None:
    first = await mesh.client.submit(tasks("a", batch_type="eval"))
    second = await mesh.client.submit(tasks("a"), min_wait_num=5)
    assert first.batch_id != second.batch_id
    commands = [command for command in mesh.coordinator.commands if isinstance(command, SubmitBatch)]
    assert [(c.batch_type, c.expected_task_count, c.min_wait_num) for c in commands] == [
        ("eval", 1, None),
        ("train", 1, 1),
    ]


@in_a_mesh
async def test_what_cannot_be_a_batch_is_refused_before_anything_is_sent(mesh: Mesh) -> None:
    for wrong in ([], [*tasks("a"), *tasks("b", batch_type="eval")], tasks("a", "a")):
        with pytest.raises(RefusedError):
            await mesh.client.submit(wrong)
    assert mesh.coordinator.commands == []


@in_a_mesh
async def test_a_task_that_is_refused_has_a_failed_result(mesh: Mesh) -> None:
    batch = await mesh.client.submit(tasks("a", repeat_times=4), batch_id=1)
    await mesh.coordinator.refuse("1#a", "too_many_runs")
    (result,) = await rest(batch)
    assert (result.task_id, result.status, result.total_runs, result.attempts) == ("a", "failed", 4, 0)
    assert result.error == "too_many_runs: says the fake"


@in_a_mesh
async def test_experiences_are_joined_in_the_order_of_the_parts(mesh: Mesh) -> None:
    batch = await mesh.client.submit(tasks("a", "b"), batch_id=1)
    await mesh.coordinator.finish("1#a", parts=2)
    await mesh.coordinator.finish("1#b", "failed")
    good, bad = await rest(batch)
    group = await mesh.client.experiences(good)
    assert group is not None
    assert len(group) == sum(part.samples for part in good.parts)
    assert await mesh.client.experiences(bad) is None


@in_a_mesh
async def test_an_aborted_batch_ends_its_iteration(mesh: Mesh) -> None:
    batch = await mesh.client.submit(tasks("a", "b"), batch_id=1)
    await mesh.coordinator.finish("1#a")
    await mesh.coordinator.until(lambda: "1#b" in mesh.coordinator.tasks)
    await batch.abort("enough")
    assert [result.status for result in await rest(batch)] == ["completed", "aborted"]
    assert (await batch.result()).state == "aborted"


@in_a_mesh
async def test_time_that_is_up_costs_nothing(mesh: Mesh) -> None:
    batch = await mesh.client.submit(tasks("a"), batch_id=1)
    with pytest.raises(TimeoutError) as told:
        await batch.result(timeout=0.1)
    assert isinstance(told.value, TimedOutError)
    await mesh.coordinator.finish("1#a")
    assert (await batch.result()).finished_task_count == 1


@in_a_mesh
async def test_a_batch_that_is_forgotten_is_a_key_error(mesh: Mesh) -> None:
    batch = await mesh.client.submit(tasks("a"), batch_id=1)
    mesh.coordinator.batches.clear()
    with pytest.raises(KeyError, match="Batch 1 is not registered") as told:
        await batch.result()
    assert isinstance(told.value, UnknownBatchError)
    assert str(told.value) == "Batch 1 is not registered."


@in_a_mesh
async def test_whoever_waits_is_told_that_the_client_was_stopped(mesh: Mesh) -> None:
    batch = await mesh.client.submit(tasks("a"), batch_id=1)
    waiting = asyncio.create_task(rest(batch))
    await asyncio.sleep(0)
    await mesh.client.stop()
    with pytest.raises(NotStartedError):
        await waiting
    with pytest.raises(NotStartedError, match="start"):
        await mesh.client.submit(tasks("a"))


@in_a_mesh
async def test_tasks_may_be_sent_with_no_batch(mesh: Mesh) -> None:
    assert await mesh.client.send(tasks("a", "b")) == 2
    async with mesh.bus.reader(TASKS, start="beginning") as reader:
        sent = [received.record async for received in reader.replay()]
    assert {(task.task_id, task.batch_id, task.producer) for task in sent} == {
        ("a", None, "client"),
        ("b", None, "client"),
    }


async def test_a_wait_asks_whether_a_coordinator_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.client.client.SILENCE_S", 0.01)

    mesh = Mesh()
    async with asyncio.timeout(20), mesh.coordinator.running(), silent_after(mesh.client, 0.2):
        batch = await mesh.client.submit(tasks("a"), batch_id=1)
        mesh.coordinator.deaf = True
        with pytest.raises(NoCoordinatorError):
            await anext(batch)
        mesh.coordinator.deaf = False
        await mesh.coordinator.finish("1#a")
        assert [result.task_id for result in await rest(batch)] == ["a"]


@contextlib.asynccontextmanager
async def silent_after(client: Client, silence_s: float) -> AsyncIterator[None]:
    async with client:
        assert client._connection is not None
        client._connection.channel._silence_s = silence_s
        client._connection.channel._again_s = silence_s / 4
        yield
