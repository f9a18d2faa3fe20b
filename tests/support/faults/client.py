"""A client of a mesh that is disturbed: produces batches as others end, and looks on."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from schemas import Task
from schemas.topics import TASKS
from tests.support.fakes.explorer import WORDS
from tests.support.faults.mesh import FaultMesh
from tests.support.mesh.log import MeshLog
from trinity_bus.bus import Bus, Producer
from trinity_bus.runtime.process import tail
from trinity_bus.view import MeshFollower, MeshState, follow

TASKS_IN_BATCH = 4
STALLED_S = 300.0
"""Without a result for so long, something waits that should not."""


class FaultClient:
    """Produces batches as others end, and looks on."""

    ahead = 6
    """Batches that are sent before those before them have ended."""

    def __init__(self, mesh: FaultMesh, bus: Bus, follower: MeshFollower) -> None:
        self.mesh = mesh
        self.bus = bus
        self.log = MeshLog()
        """What was on the log in the end."""
        self._follower = follower
        self.sent = 0
        """Batches."""
        self.enough = False

    @property
    def view(self) -> MeshState:
        return self._follower.state

    @property
    def ended(self) -> int:
        return self.view.states["finalized"]

    @property
    def results(self) -> int:
        """Of attempts, whatever became of them."""
        return self.view.rollouts.total()

    async def until(self, count: int) -> None:
        """Return once so many batches have ended."""
        await self.until_true(lambda: self.ended >= count, f"the end of {count} batches")

    async def until_true(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, as long as anything goes on."""
        seen, at = (0, 0), time.monotonic()
        while not condition():
            self.mesh.check()
            if (now := (self.ended, self.results)) != seen:
                seen, at = now, time.monotonic()
            stalled_s = time.monotonic() - at
            assert stalled_s < STALLED_S, f"no result for {stalled_s:.0f} s, wanted: {what}; {seen}\n{self._logs()}"
            await self._follower.changed(0.1)

    def _logs(self) -> str:
        logs = {"broker": self.mesh.broker.folder.server_log}
        logs |= {service.name: service.log for service in self.mesh.services.values()}
        return "\n".join(f"-- {name}\n{tail(log, 15)}" for name, log in logs.items())

    async def until_all_work(self) -> None:
        """Waits for every service: one that starts while there is no broker rightly ends, and is started again."""
        names = {service.name for service in self.mesh.of_role("explorer")}
        await self.until_true(
            lambda: names <= set(self.view.explorers) and self.view.trainer is not None, f"a trainer, and {names}"
        )

    def batch_of(self, number: int) -> list[Task]:
        return tasks_of(number, f"batch-{number}", batch_size=TASKS_IN_BATCH)

    async def send(self, producer: Producer) -> None:
        for task in self.batch_of(self.sent):
            await (await producer.send(TASKS, task.task_id, task))
        self.sent += 1

    async def produce(self) -> None:
        async with self.bus.producer() as producer:
            while not self.enough:
                if self.sent < self.ended + self.ahead:
                    await self.send(producer)
                else:
                    await self._follower.changed(0.1)


def tasks_of(number: int, batch_id: str, **fields: object) -> list[Task]:
    return [
        Task.model_validate(
            {
                "task_id": f"task-{number}-{i}",
                "workflow": "sequence",
                "prompt": f"{number} {i} {number + i}",
                "answer": " ".join(WORDS),
                "batch_id": batch_id,
                **fields,
            }
        )
        for i in range(TASKS_IN_BATCH)
    ]


@asynccontextmanager
async def at_work[C: FaultClient](client_type: type[C], mesh: FaultMesh, **kafka: float) -> AsyncIterator[C]:
    """A mesh with a client that produces until the end of the block, and then waits for all that it has sent."""
    async with mesh, Bus(mesh.kafka.model_copy(update=kafka), client_id="test") as bus:
        await bus.ensure_topics()
        async with follow(bus, whole=True) as follower:
            client = client_type(mesh, bus, follower)
            await client.until_all_work()
            async with asyncio.TaskGroup() as group:
                group.create_task(client.produce())
                yield client
                client.enough = True
            await client.until(client.sent)
        client.log = await MeshLog.read(bus)


def assert_no_traceback(folder: Path) -> None:
    """Whatever befell services, they have said it in their own words."""
    for output in sorted(folder.glob("*/*.log")):
        before, found, after = output.read_text().partition("Traceback")
        assert not found, f"{output.name}: {before[-500:]}{found}{after[:4000]}"
