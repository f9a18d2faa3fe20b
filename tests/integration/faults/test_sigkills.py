"""A mesh of real processes under SIGKILLs at random moments, and what its log says afterwards.

A seed decides which process is killed after how many results; it is printed, and ``FAULT_SEED`` in the environment
gives it. Every process that ends is started anew. A client goes on producing tasks all the while. At the end the
invariants are read off the log (``tests.support.mesh.log``), and the same tasks are run once more by a mesh that nobody
disturbs: batch by batch both must come to the same tasks, samples and metrics.
"""

import asyncio
import os
import random
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from schemas import FinalizeBatch, SubmitBatch, Task
from schemas.command import BatchResult
from tests.support.faults.client import (
    STALLED_S,
    TASKS_IN_BATCH,
    FaultClient,
    assert_no_traceback,
    at_work,
    tasks_of,
)
from tests.support.faults.mesh import BELOW, FaultMesh
from tests.support.mesh.broker_cluster import BrokerCluster
from tests.support.sampled import at_night
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.bus import Bus
from trinity_bus.client import CommandChannel
from trinity_bus.view import MeshFollower

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

KILLS = {
    "active": 10,
    "standby": 6,
    "explorer": 13,
    "runner": 14,
    "fork_server": 3,
    "guard": 1,
    "trainer": 3,
    "broker": 4,
}
FEW = {"active": 3, "standby": 1, "explorer": 4, "runner": 4, "fork_server": 1, "trainer": 1, "broker": 1}
MAX_STALENESS = 1
MAX_INFLIGHT = 3
FINALIZE_S = 3600.0

COORDINATOR = {
    "max_staleness": MAX_STALENESS,
    "max_inflight_batches": MAX_INFLIGHT,
    "tick_s": 0.05,
    # Long enough that none that lives is ever silent for it, however busy the machine is: the work of one that is lost
    # is repeated. Who is killed is started again, and not missed for so long.
    "explorer_timeout_s": 60,
    # A task may be unlucky many times here, and must not fail for it.
    "max_attempts": 1000,
    # Groups are split, and their parts may be of several explorers.
    "group_size": 3,
    "max_repeat_times_per_runner": 2,
}
EXPLORER = {"slots": 4, "heartbeat_s": 0.3, "runners": 2}


def is_submitted(number: int) -> bool:
    """Whether a client submits the batch and waits for its end, rather than only sending its tasks."""
    return number % 2 == 1


class Client(FaultClient):
    """Sends all batches, every fifth an evaluation; kills as planned."""

    ahead = 8
    batches = 90

    def __init__(self, mesh: FaultMesh, bus: Bus, follower: MeshFollower) -> None:
        super().__init__(mesh, bus, follower)
        self.replies: dict[str, BatchResult] = {}
        """What it was told of batches."""

    def batch_of(self, number: int) -> list[Task]:
        batch_size = None if is_submitted(number) else TASKS_IN_BATCH
        if number % 5 == 4:
            return tasks_of(number, f"{number}/held-out", batch_type="eval", batch_size=batch_size)
        return tasks_of(number, f"batch-{number}", batch_size=batch_size)

    async def produce(self) -> None:
        async with (
            self.bus.producer() as producer,
            CommandChannel(self.bus, producer, name="client", silence_s=STALLED_S) as channel,
            asyncio.TaskGroup() as waiting,
        ):
            while (number := self.sent) < self.batches:
                await self.until_true(lambda n=number: n < self.ended + self.ahead, f"batch {number} to be sent")  # type: ignore[misc]
                task = self.batch_of(number)[0]
                if is_submitted(number):
                    batch: dict[str, Any] = {"batch_id": task.batch_id, "batch_type": task.batch_type}
                    reply = await channel.ask(SubmitBatch, **batch, expected_task_count=TASKS_IN_BATCH)
                    assert reply.error is None, reply
                await self.send(producer)
                if is_submitted(number):
                    waiting.create_task(self._finalize(channel, task))

    async def _finalize(self, channel: CommandChannel, task: Task) -> None:
        batch_id = str(task.batch_id)
        # Twice at once: whoever waits for a batch gets what everybody gets.
        batch: dict[str, Any] = {"batch_id": batch_id, "batch_type": task.batch_type, "timeout_s": FINALIZE_S}
        asked = [channel.ask(FinalizeBatch, **batch) for _ in range(2)]
        for reply in await asyncio.gather(*asked):
            assert reply.error is None, reply
            assert reply.result is not None
            assert self.replies.setdefault(batch_id, reply.result) == reply.result

    async def kill(self, plan: list[tuple[int, str]], rng: random.Random) -> None:
        """Kills as planned: (after so many results, a process of this role)."""
        for after, role in plan:
            await self.until_true(lambda n=after: self.results >= n, f"result {after}")  # type: ignore[misc]
            await self.until_true(lambda r=role: self._kill_one(r, rng), f"a {role} to kill")  # type: ignore[misc]

    def _kill_one(self, role: str, rng: random.Random) -> bool:
        if role == "broker":
            return self.mesh.kill_broker()
        if role in BELOW:
            return self.mesh.kill_below(rng.choice(self.mesh.of_role("explorer")), role, rng)
        found = self.mesh.of_role(role)
        if role in ("active", "standby"):
            active = self.view.coordinator and self.view.coordinator.coordinator
            found = [s for s in self.mesh.of_role("coordinator") if (s.name == active) is (role == "active")]
        return bool(found) and rng.choice(found).kill()


class ShortClient(Client):
    batches = 30


def mesh_in(folder: Path, broker: EmbeddedBroker | BrokerCluster | None = None, **changes: object) -> FaultMesh:
    """A mesh of three explorers in a namespace of its own."""
    return FaultMesh(
        folder,
        coordinators=2,
        explorers=3,
        coordinator=COORDINATOR,
        explorer=EXPLORER,
        broker=broker,
        **{"engine_delay_s": 0.1, **changes},  # type: ignore[arg-type]
    )


def make_plan(kills: Mapping[str, int], batches: int, rng: random.Random) -> list[tuple[int, str]]:
    """Kills spread over the work: none after its last quarter, so that each has something to spoil."""
    roles = [role for role, count in kills.items() for _ in range(count)]
    rng.shuffle(roles)
    last = batches * TASKS_IN_BATCH * 3 // 4
    moments = sorted(rng.randrange(1, last) for _ in roles)
    return list(zip(moments, roles, strict=True))


@pytest.mark.parametrize(("client_type", "kills"), [(ShortClient, FEW), at_night(Client, KILLS)], ids=["few", "many"])
async def test_nothing_is_lost_and_nothing_counts_twice_under_sigkills(
    tmp_path: Path, client_type: type[Client], kills: dict[str, int]
) -> None:
    seed = int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FAULT_SEED={seed}")
    rng = random.Random(seed)  # noqa: S311 - a schedule of kills
    plan = make_plan(kills, client_type.batches, rng)
    began = time.monotonic()
    mesh = mesh_in(tmp_path / "disturbed")
    async with at_work(client_type, mesh) as client:
        await client.kill(plan, rng)
        await client.until(client.batches)
        disturbed_s = time.monotonic() - began
        async with at_work(client_type, mesh_in(tmp_path / "calm", mesh.broker, engine_delay_s=0.0)) as calm:
            await calm.until(calm.batches)
    incarnations = {service.name: service.incarnations for service in mesh.services.values()}
    print(f"{disturbed_s:.0f} s disturbed, {time.monotonic() - began - disturbed_s:.0f} s calm; runs: {incarnations}")
    print(f"SIGKILLs: {dict(mesh.kills)}, together {mesh.kills.total()}")
    assert mesh.kills.total() >= 0.9 * len(plan)
    for run in (client, calm):
        run.log.check(max_staleness=MAX_STALENESS, max_inflight_batches=MAX_INFLIGHT)
        run.log.check_replies(run.replies)
    assert client.log.contents() == calm.log.contents()
    assert client.log.repeated() == []
    said = "".join(output.read_text() for output in tmp_path.glob("disturbed/explorer-*.log"))
    # Runners that died with their explorer told nobody, and one may have been killed in the moment before that.
    assert len(re.findall(r"runner \S+ was ended by SIGKILL", said)) >= kills["runner"] // 2 - 1
    assert_no_traceback(tmp_path)
