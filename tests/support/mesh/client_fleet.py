"""A mesh for clients: a real coordinator, and an explorer that answers, or keeps what a test wants it to keep."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from schemas import Task, TaskResult
from schemas.topics import RESULTS
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, environment
from tests.support.mesh.records import first, record_of
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus, Producer, Received
from trinity_bus.config import Settings
from trinity_bus.runtime.process import Process


def tasks(count: int, first: int = 0, **fields: Any) -> list[Task]:
    """Tasks t0, t1 ..., or h0, h1 ... of which the explorer keeps the orders."""
    return [Task(task_id=f"t{n}", workflow="math", prompt="1 + 1", **fields) for n in range(first, first + count)]


def held(count: int, **fields: Any) -> list[Task]:
    """Tasks whose orders the explorer keeps until it is told to answer them."""
    return [Task(task_id=f"h{n}", workflow="math", prompt="1 + 1", **fields) for n in range(count)]


ROOT = Path(__file__).parents[3]


class Fleet:
    """One fake explorer, a fake trainer, and a real coordinator."""

    def __init__(
        self, mesh: Mesh, bus: Bus, producer: Producer, workers: tuple[FakeExplorer, FakeTrainer], coordinator: Process
    ) -> None:
        self.explorer, self.trainer = workers
        self.mesh = mesh
        self.bus = bus
        self.kill_coordinator = coordinator.kill
        self._producer = producer
        self.settings = Settings().model_copy(update={"kafka": mesh.kafka})

    async def orders(self, name: str, count: int = 1) -> list[Received[Any]]:
        """The orders to run a task, by its id on the log or the end of it, when so many have come."""

        def found() -> list[Received[Any]]:
            return [order for order in self.explorer.orders if record_of(order).task.task_id.endswith(name)]

        await until(lambda: len(found()) >= count)
        return found()

    async def counted(self, name: str) -> TaskResult:
        """The result of a task, by its id on the log or the end of it, when it counts."""
        async with self.bus.reader(RESULTS, start="beginning") as reader:
            return await first(reader, TaskResult, lambda result: result.task_id.endswith(name))

    async def answer(self, name: str) -> None:
        """Completes the last order of a task that was held."""
        await self.explorer._answer(self._producer, (await self.orders(name))[-1])


@contextlib.asynccontextmanager
async def fleet(mesh: Mesh, **settings: object) -> AsyncIterator[Fleet]:
    """A fleet at work, with these settings of its coordinator."""
    values: dict[str, Any] = {
        "explorer_timeout_s": 60,
        "group_size": 1,
        "max_staleness": 8,
        "max_inflight_batches": 8,
        **settings,
    }
    async with mesh.connected() as (bus, producer):
        explorer = FakeExplorer(bus, hold=lambda order: "#h" in order.task.task_id, slots=16)
        trainer = FakeTrainer(bus)
        with mesh.coordinator(**values) as coordinator:
            # A client has less patience than a program needs that starts on a busy machine.
            number = mesh.started
            await until(lambda: "ready" in mesh.log(number) or coordinator.poll() is not None)
            assert coordinator.poll() is None
            async with explorer.alive(), trainer.alive():
                yield Fleet(mesh, bus, producer, (explorer, trainer), coordinator)


async def program(fleet: Fleet, *command: str) -> str:
    """What a program prints that ends well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(fleet.mesh.kafka) | {"PYTHONPATH": str(ROOT)},
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode()
