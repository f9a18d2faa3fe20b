"""Several coordinators on a real broker: one works, the others stand by, and nothing is lost or counted twice."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from schemas import CoordinatorHeartbeat
from schemas.topics import COORDINATOR_STATE, EVENTS
from tests.support.fake_workers import WAIT_S, FakeExplorer, FakeTrainer
from tests.support.mesh import Mesh, send_tasks, until
from trinity_bus.bus import Bus, Reader
from trinity_bus.config import KafkaSettings
from trinity_bus.coordination import Leader
from workers.coordinator.changelog import LEADER_KEY, unpack_leader

pytestmark = pytest.mark.integration


@pytest.fixture
def mesh(kafka: KafkaSettings, tmp_path: Path) -> Mesh:
    return Mesh(kafka, tmp_path)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


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


@pytest.mark.parametrize("waiting", [0, 3000])
def test_one_that_stands_by_takes_over_from_a_killed_one(mesh: Mesh, waiting: int) -> None:
    """With none, and with thousands of open tasks in the changelog."""

    async def main() -> None:
        async with mesh.connected() as (bus, producer), bus.reader(COORDINATOR_STATE) as log:
            leaders = Leaders(log)
            with mesh.coordinator(name="first") as first:
                await leaders.until("active", "first")
                with mesh.coordinator(name="second") as second, mesh.coordinator(name="third") as third:
                    await until(lambda: "standing by: first works" in mesh.log(2) + mesh.log(3))
                    if waiting:
                        # Nobody takes these: they wait in a batch that never gets whole.
                        await send_tasks(producer, waiting, "waits", batch_id="large", batch_size=waiting + 1)
                        await until_heartbeat(bus, lambda beat: beat.open_tasks == waiting)
                    async with FakeExplorer(bus).alive() as explorer, FakeTrainer(bus).alive() as trainer:
                        await send_tasks(producer, 4)
                        await trainer.until_trained(1)
                        orders = len(explorer.orders)
                        await send_tasks(producer, 4, "after")
                        killed = time.monotonic()
                        os.kill(first.pid, signal.SIGKILL)
                        committed_s = await leaders.until("active", "second", "third") - killed
                        await until(lambda: len(explorer.orders) > orders)
                        dispatched_s = time.monotonic() - killed
                        await trainer.until_trained(2)
                    assert (second.poll(), third.poll()) == (None, None), "who is not needed goes on standing by"
            print(f"{waiting} open tasks: commit after {committed_s:.2f} s, order after {dispatched_s:.2f} s")
            assert counted(trainer) == Counter(
                {f"{prefix}-{number}": 1 for prefix in ("task", "after") for number in range(4)}
            )

    run(main())


async def until_heartbeat(bus: Bus, condition: Callable[[CoordinatorHeartbeat], bool]) -> None:
    """Waits for a coordinator's heartbeat of which this holds."""
    async with bus.reader(EVENTS) as reader, asyncio.timeout(WAIT_S):
        while True:
            for received in await reader.batch(0.2):
                if isinstance(received.record, CoordinatorHeartbeat) and condition(received.record):
                    return
