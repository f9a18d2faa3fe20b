"""Several coordinators on a real broker: one works, the others stand by, and nothing is lost or counted twice."""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas import CoordinatorHeartbeat
from schemas.topics import COORDINATOR_EVENTS, COORDINATOR_STATE
from tests.support.fakes.workers import WAIT_S, FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.waiting import until
from tests.support.sampled import at_night
from trinity_bus.bus import Bus, Reader
from trinity_bus.config import CoordinatorSettings, KafkaSettings, Settings
from trinity_bus.coordination import Leader
from trinity_bus.errors import BusError
from workers.coordinator.outputs import LEADER_KEY, Outputs, unpack_leader
from workers.coordinator.service import Coordinator

pytestmark = pytest.mark.integration


class Leaders:
    """What the changelog says of who leads, as it is written."""

    def __init__(self, reader: Reader) -> None:
        self.seen: list[Leader] = []
        self._reader = reader

    async def until(self, state: str, *names: str) -> float:
        """Waits until one of these says this; returns when it was read, in seconds of the steady clock."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for received in await self._reader.batch(0.2):
                    if received.key == LEADER_KEY:
                        self.seen.append(unpack_leader(received.raw))
                        if self.seen[-1].name in names and self.seen[-1].state == state:
                            return time.monotonic()


def counted(trainer: FakeTrainer) -> Counter[str]:
    return Counter(entry.task_id for batch in trainer.trained for entry in batch.manifest)


@pytest.mark.parametrize("waiting", [at_night(0), 3000])
async def test_one_that_stands_by_takes_over_from_a_killed_one(mesh: Mesh, waiting: int) -> None:
    """With none, and with thousands of open tasks in the changelog."""

    async with mesh.connected() as (bus, producer), bus.reader(COORDINATOR_STATE) as log:
        leaders = Leaders(log)
        with mesh.coordinator(name="a") as a, mesh.coordinator(name="b") as b, mesh.coordinator(name="c") as c:
            children = {"a": a, "b": b, "c": c}
            await until(lambda: all("standing by" in mesh.log(n) or "ready" in mesh.log(n) for n in (1, 2, 3)))
            if waiting:
                # Nobody takes these: they wait in a batch that never gets whole.
                await send_tasks(producer, waiting, "waits", batch_id="large", batch_size=waiting + 1)
                await until_heartbeat(bus, lambda beat: beat.open_tasks == waiting)
            async with FakeExplorer(bus).alive() as explorer, FakeTrainer(bus).alive() as trainer:
                await send_tasks(producer, 4)
                await trainer.until_trained(1)
                # While all three started on a busy machine, one may have been silent for long enough to lose it.
                leader = (await until_heartbeat(bus, lambda _: True)).coordinator
                orders = len(explorer.orders)
                async with bus.reader(COORDINATOR_EVENTS, start="beginning") as reader:
                    said = [item.record async for item in reader.replay()]
                first, *_ = (beat for beat in said if isinstance(beat, CoordinatorHeartbeat))
                assert "coordinator.batch_size" in first.settings
                await send_tasks(producer, 4, "after")
                killed = time.monotonic()
                os.kill(children.pop(leader).pid, signal.SIGKILL)
                committed_s = await leaders.until("active", *children) - killed
                await until(lambda: len(explorer.orders) > orders)
                dispatched_s = time.monotonic() - killed
                await trainer.until_trained(2)
            assert None in {child.poll() for child in children.values()}
        print(f"{waiting} open tasks: commit after {committed_s:.2f} s, order after {dispatched_s:.2f} s")
        assert counted(trainer) == Counter(
            {f"{prefix}-{number}": 1 for prefix in ("task", "after") for number in range(4)}
        )


@pytest.mark.parametrize("moment", [at_night("at any moment"), "amid a transaction"])
async def test_a_stopped_one_that_wakes_up_is_fenced_and_ends_with_one_line(mesh: Mesh, moment: str) -> None:
    batches = 30

    async with (
        mesh.connected() as (bus, producer),
        bus.reader(COORDINATOR_STATE) as log,
        looking_at_transactions(mesh) as has_open_transaction,
    ):
        leaders = Leaders(log)
        patience: dict[str, Any] = {"takeover_s": 4.0}
        with (
            mesh.coordinator(name="first", **patience) as first,
            mesh.coordinator(name="second", **patience) as second,
        ):
            leader = await led_for_a_while(leaders, "first", "second")
            names = ["first", "second"] if leader == "first" else ["second", "first"]
            works, stands_by = (first, second) if names[0] == "first" else (second, first)
            async with FakeExplorer(bus, slots=3).alive(), FakeTrainer(bus).alive() as trainer:
                sending = asyncio.create_task(send_tasks(producer, 4 * batches))
                await trainer.until_trained(1)
                os.kill(works.pid, signal.SIGSTOP)
                while moment == "amid a transaction" and not await has_open_transaction():
                    os.kill(works.pid, signal.SIGCONT)
                    await asyncio.sleep(0.003)
                    os.kill(works.pid, signal.SIGSTOP)
                await leaders.until("active", names[1])
                taken_over_at = len(leaders.seen)
                os.kill(works.pid, signal.SIGCONT)
                await until(lambda: works.poll() is not None)
                await sending
                await trainer.until_trained(batches)
                await leaders.until("active", names[1])
            assert stands_by.poll() is None
        assert works.poll() == 2
        said = mesh.log(1 if works is first else 2)
        assert f"another coordinator of namespace '{mesh.kafka.namespace}' has taken over" in said.splitlines()[-1]
        assert "Traceback" not in said
        assert {leader.name for leader in leaders.seen[taken_over_at:]} == {names[1]}, "nothing of it came since"
        assert counted(trainer) == Counter({f"task-{number}": 1 for number in range(4 * batches)})


async def test_one_that_is_told_to_stop_hands_over_at_once(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer), bus.reader(COORDINATOR_STATE) as log:
        leaders = Leaders(log)
        # Silence alone would take longer than the test waits.
        with mesh.coordinator(name="first", takeover_s=WAIT_S) as first:
            await leaders.until("active", "first")
            with mesh.coordinator(name="second", takeover_s=WAIT_S, heartbeat_s=0.2):
                await until(lambda: "standing by: first works" in mesh.log(2))
                assert await asyncio.to_thread(first.stop, 60) == 0
                await leaders.until("active", "second")
                async with FakeExplorer(bus).alive(), FakeTrainer(bus).alive() as trainer:
                    await send_tasks(producer, 4)
                    await trainer.until_trained(1)
        assert [leader.state for leader in leaders.seen if leader.name == "first"][-1] == "left"


async def test_one_whose_transaction_fails_goes_on_from_the_last_commit(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is made: after everything is sent, and before it is committed."""
    record_changes, transactions, fail_at = Outputs.record_changes, itertools.count(), {5, 6, 20}

    async def failing(outputs: Outputs, changes: Any, positions: Any) -> None:
        await record_changes(outputs, changes, positions)
        if next(transactions) in fail_at:
            raise BusError("the log has failed, by order of a test")

    monkeypatch.setattr(Outputs, "record_changes", failing)
    caplog.set_level(logging.INFO, "workers.coordinator")

    async with mesh.connected() as (bus, producer):
        settings = Settings(kafka=mesh.kafka, coordinator=CoordinatorSettings(batch_size=4, tick_s=0.05))
        working = asyncio.create_task(Coordinator(settings, bus).run())
        async with FakeExplorer(bus).alive(), FakeTrainer(bus).alive() as trainer:
            await send_tasks(producer, 40)
            await trainer.until_trained(10)
        assert not working.done()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert counted(trainer) == Counter({f"task-{number}": 1 for number in range(40)})
        assert [batch.sequence for batch in trainer.trained] == list(range(1, 11))
    said = [record.getMessage() for record in caplog.records]
    assert sum("of no use at the moment: the log has failed" in line for line in said) == len(fail_at)
    assert sum(line.startswith("ready") for line in said) == len(fail_at) + 1


async def test_two_meshes_on_one_broker_do_not_disturb_each_other(kafka: KafkaSettings, tmp_path: Path) -> None:
    """Coordinators, explorers, trainers, tasks and batches of the same names, in two namespaces."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()

    async def one(folder: Path, count: int) -> None:
        mesh = Mesh(kafka, folder)
        async with mesh.connected() as (bus, producer):
            with mesh.coordinator(name="coordinator-0") as coordinator:
                explorer = FakeExplorer(bus, "explorer-0")
                async with explorer.alive(), FakeTrainer(bus).alive() as trainer:
                    await send_tasks(producer, count)
                    await send_tasks(producer, 2, "named", batch_id="same", batch_size=2)
                    await trainer.until_trained(count // 4 + 1)
                assert coordinator.poll() is None
        expected = {f"task-{number}": 1 for number in range(count)} | {"named-0": 1, "named-1": 1}
        assert counted(trainer) == Counter(expected)
        assert len(explorer.orders) == len(expected)

    async with asyncio.TaskGroup() as both:
        both.create_task(one(folders[0], 24))
        both.create_task(one(folders[1], 8))


async def led_for_a_while(leaders: Leaders, *names: str) -> str:
    """Waits for more signs of life than one that loses a race could have given; who gave the last of them."""
    for _ in range(12):
        await leaders.until("active", *names)
    return leaders.seen[-1].name


@contextlib.asynccontextmanager
async def looking_at_transactions(mesh: Mesh) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Provide a look whether the changelog ends with records that are not committed.

    It takes a moment: who works stands still meanwhile, and loses its place if it does so for long.
    """
    position = TopicPartition(COORDINATOR_STATE.full_name(mesh.kafka.namespace), 0)
    async with contextlib.AsyncExitStack() as stack:
        consumers = []
        for isolation in ("read_uncommitted", "read_committed"):
            consumer = AIOKafkaConsumer(bootstrap_servers=mesh.kafka.bootstrap_servers, isolation_level=isolation)
            await consumer.start()
            stack.push_async_callback(consumer.stop)
            consumers.append(consumer)

        async def look() -> bool:
            written, committed = [(await one.end_offsets([position]))[position] for one in consumers]
            return bool(written > committed)

        yield look


async def until_heartbeat(bus: Bus, condition: Callable[[CoordinatorHeartbeat], bool]) -> CoordinatorHeartbeat:
    """The next heartbeat of a coordinator of which this holds."""
    async with bus.reader(COORDINATOR_EVENTS) as reader, asyncio.timeout(WAIT_S):
        while True:
            for received in await reader.batch(0.2):
                if isinstance(received.record, CoordinatorHeartbeat) and condition(received.record):
                    return received.record
