"""A client of a mesh that is disturbed: produces batches as others end, and looks on."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas import Task
from schemas.topics import TASKS
from tests.support.fakes.zero_cost_explorer import WORDS
from tests.support.faults.mesh import FaultMesh
from tests.support.mesh.log import MeshLog
from trinity_bus.bus import Bus
from trinity_bus.runtime.process import tail
from trinity_bus.view import MeshFollower, follow

TASKS_IN_BATCH = 4
AHEAD = 6
"""Batches that are sent before those before them have ended."""
LIMIT_S = 200.0


def batch_of(number: int) -> list[Task]:
    return [
        Task(
            task_id=f"task-{number}-{i}",
            workflow="sequence",
            prompt=f"{number} {i} {number + i}",
            answer=" ".join(WORDS),
            batch_id=f"batch-{number}",
            batch_size=TASKS_IN_BATCH,
        )
        for i in range(TASKS_IN_BATCH)
    ]


class FaultClient:
    """Produces batches as others end, and looks on."""

    def __init__(self, mesh: FaultMesh, bus: Bus, follower: MeshFollower) -> None:
        self._mesh = mesh
        self.bus = bus
        self.log = MeshLog()
        """What was on the log in the end."""
        self._follower = follower
        self.sent = 0
        """Batches."""
        self.enough = False

    @property
    def ended(self) -> int:
        return sum(batch.state == "finalized" for batch in self._follower.state.batches.values())

    async def until(self, count: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.ended < count:
            self._mesh.check()
            assert time.monotonic() < deadline, f"{self.ended} of {count} batches have ended\n{self._logs()}"
            await self._follower.changed(0.1)

    def _logs(self) -> str:
        logs = {"broker": self._mesh.broker.folder.server_log}
        logs |= {service.name: service.log for service in self._mesh.services.values()}
        return "\n".join(f"-- {name}\n{tail(log, 15)}" for name, log in logs.items())

    async def until_all_work(self) -> None:
        """Waits for every service: one that starts while there is no broker rightly ends, and is started again."""
        deadline = time.monotonic() + LIMIT_S
        explorers = {service.name for service in self._mesh.of_role("explorer")}
        while not (explorers <= set(self._follower.state.explorers) and self._follower.state.trainer is not None):
            self._mesh.check()
            assert time.monotonic() < deadline, f"at work: {[*self._follower.state.explorers]} of {sorted(explorers)}"
            await self._follower.changed(0.1)

    async def produce(self) -> None:
        async with self.bus.producer() as producer:
            while not self.enough:
                # What is waited for is seen by the other task of this test.
                while self.sent >= self.ended + AHEAD:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                for task in batch_of(self.sent):
                    await (await producer.send(TASKS, task.task_id, task))
                self.sent += 1


@asynccontextmanager
async def at_work(mesh: FaultMesh, **kafka: float) -> AsyncIterator[FaultClient]:
    """A mesh with a client that produces until the end of the block, and then waits for all that it has sent."""
    async with mesh, Bus(mesh.kafka.model_copy(update=kafka), client_id="test") as bus:
        await bus.ensure_topics()
        async with follow(bus, whole=True) as follower:
            client = FaultClient(mesh, bus, follower)
            await client.until_all_work()
            async with asyncio.TaskGroup() as group:
                group.create_task(client.produce())
                yield client
                client.enough = True
            await client.until(client.sent)
        client.log = await MeshLog.read(bus)
