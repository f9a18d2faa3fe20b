"""A broker that is killed and comes back: every service waits for it, none ends, and the log keeps its invariants."""

import asyncio
import time
import uuid
from pathlib import Path

import pytest

from schemas import Task
from schemas.topics import TASKS
from tests.support.fakes.zero_cost_explorer import WORDS
from tests.support.faults.mesh import FaultMesh
from tests.support.mesh.log import MeshLog
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.runtime.process import start_time, tail
from trinity_bus.view import MeshFollower, follow

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

OUTAGES = 2
TASKS_IN_BATCH = 4
BATCHES_SENT = 16
AHEAD = 6
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


class Client:
    """Produces batches as others end, and looks on."""

    def __init__(self, mesh: FaultMesh, bus: Bus, follower: MeshFollower) -> None:
        self._mesh = mesh
        self._bus = bus
        self._follower = follower

    @property
    def ended(self) -> int:
        return sum(batch.state == "finalized" for batch in self._follower.state.batches.values())

    async def until(self, count: int) -> None:
        """Waits for so many batches to end."""
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
        async with self._bus.producer() as producer:
            for number in range(BATCHES_SENT):
                # What is waited for is seen by the other task of this test.
                while number >= self.ended + AHEAD:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                for task in batch_of(number):
                    await (await producer.send(TASKS, task.task_id, task))


async def kill_broker(mesh: FaultMesh) -> None:
    """Kills it and waits until it is gone."""
    pid = mesh.broker.pid
    assert pid is not None
    assert mesh.kill_broker()
    await until(lambda: start_time(pid) is None)


@pytest.mark.parametrize("coordinators", [1, 2])
async def test_a_broker_that_is_killed_again_and_again_ends_nobody_and_loses_nothing(
    tmp_path: Path, coordinators: int
) -> None:
    async def main() -> tuple[MeshLog, dict[str, int]]:
        mesh = FaultMesh(
            tmp_path / "mesh",
            f"outages-{uuid.uuid4().hex[:8]}",
            coordinators=coordinators,
            explorers=2,
            coordinator={"max_staleness": 1, "tick_s": 0.05, "explorer_timeout_s": 10, "group_size": 2},
            explorer={"slots": 4, "heartbeat_s": 0.3},
            engine_delay_s=0.1,
        )
        async with mesh, Bus(mesh.kafka, client_id="test") as bus:
            await bus.ensure_topics()
            async with follow(bus, whole=True) as follower:
                client = Client(mesh, bus, follower)
                await client.until_all_work()
                async with asyncio.TaskGroup() as group:
                    group.create_task(client.produce())
                    for outage in range(OUTAGES):
                        await client.until((outage + 1) * BATCHES_SENT // (OUTAGES + 2))
                        killed = time.monotonic()
                        await kill_broker(mesh)
                        before = client.ended
                        await client.until(before + 2)
                        print(f"outage {outage}: the next batches ended {time.monotonic() - killed:.1f} s after it")
                    await client.until(BATCHES_SENT)
            log = await MeshLog.read(bus)
        return log, {service.name: service.incarnations for service in mesh.services.values()}

    log, incarnations = await main()
    print(incarnations)
    log.check(max_staleness=1, max_inflight_batches=2)
    assert len(log.contents()) == BATCHES_SENT
    assert {name: count for name, count in incarnations.items() if not name.startswith("coordinator")} == {
        "explorer-0": 1,
        "explorer-1": 1,
        "trainer": 1,
    }
    if coordinators == 1:
        assert incarnations["coordinator-0"] == 1
    for output in sorted(tmp_path.glob("*/*.log")):
        assert "Traceback" not in output.read_text(), output.read_text()[-4000:]
