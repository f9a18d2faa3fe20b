"""A mesh of real processes under SIGKILLs at random moments, and what its log says afterwards.

A seed decides which process is killed after how many results; it is printed, and ``FAULT_SEED`` in the environment
gives it. Every process that ends is started anew. A client goes on producing tasks all the while. At the end the
invariants are read off the log (``tests.support.mesh.log``), and the same tasks are run once more by a mesh that nobody
disturbs: batch by batch both must come to the same tasks, samples and metrics.
"""

import asyncio
import contextlib
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    CoordinatorHeartbeat,
    FinalizeBatch,
    RolloutFinished,
    SubmitBatch,
    Task,
)
from schemas.command import BatchResult
from schemas.topics import BATCHES, COORDINATOR_EVENTS, EXPLORER_EVENTS, TASKS
from tests.support.fakes.zero_cost_explorer import WORDS
from tests.support.faults.mesh import BELOW, FaultMesh
from tests.support.mesh.broker_cluster import BrokerCluster
from tests.support.mesh.log import MeshLog
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.bus import Bus
from trinity_bus.client import CommandChannel
from trinity_bus.runtime.process import tail

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
TASKS_IN_BATCH = 4
BATCHES_SENT = 90
AHEAD = 8
"""Batches that the client sends before those before them have ended."""
MAX_STALENESS = 1
MAX_INFLIGHT = 3
FINALIZE_S = 3600.0
STALLED_S = 300.0
"""Without a result for so long, something waits that should not."""

COORDINATOR = {
    "max_staleness": MAX_STALENESS,
    "max_inflight_batches": MAX_INFLIGHT,
    "tick_s": 0.05,
    # Long enough that none that lives is ever silent for it: the work of one that is lost is repeated.
    "explorer_timeout_s": 10,
    # A task may be unlucky many times here, and must not fail for it.
    "max_attempts": 1000,
    # Groups are split, and their parts may be of several explorers.
    "group_size": 3,
    "max_repeat_times_per_runner": 2,
}
EXPLORER = {"slots": 4, "heartbeat_s": 0.3, "runners": 2}


def batch_of(number: int) -> list[Task]:
    """The tasks of the batch of this number. Every fifth is an evaluation."""
    eval_batch = number % 5 == 4
    return [
        Task(
            task_id=f"task-{number}-{i}",
            workflow="sequence",
            prompt=f"{number} {i} {number + i}",
            answer=" ".join(WORDS),
            batch_id=f"{number}/held-out" if eval_batch else f"batch-{number}",
            batch_type="eval" if eval_batch else "train",
            batch_size=None if is_submitted(number) else TASKS_IN_BATCH,
        )
        for i in range(TASKS_IN_BATCH)
    ]


def is_submitted(number: int) -> bool:
    """Whether a client submits the batch and waits for its end, rather than only sending its tasks."""
    return number % 2 == 1


type Outcome = tuple[MeshLog, dict[str, BatchResult]]


class Watch:
    """What the test itself sees on the log while the mesh works."""

    def __init__(self) -> None:
        self.results = 0
        self.active = ""
        """The coordinator that works."""
        self.ended: set[str] = set()
        self.progress_at = time.monotonic()

    async def look(self, bus: Bus) -> None:
        """Looks until cancelled."""
        async with bus.reader(EXPLORER_EVENTS, COORDINATOR_EVENTS, BATCHES, start="beginning") as reader:
            while True:
                for received in await reader.batch(1.0):
                    record = received.record
                    if isinstance(record, RolloutFinished):
                        self.results += 1
                        self.progress_at = time.monotonic()
                    elif isinstance(record, CoordinatorHeartbeat):
                        self.active = record.coordinator
                    elif isinstance(record, BatchRecord) and record.state is BatchLifecycleState.FINALIZED:
                        self.ended.add(record.batch_id)
                        self.progress_at = time.monotonic()


class Run:
    """One run of all tasks through a mesh."""

    def __init__(self, mesh: FaultMesh, bus: Bus) -> None:
        self.mesh = mesh
        self.watch = Watch()
        self.replies: dict[str, BatchResult] = {}
        """What the client was told of batches."""
        self.looking: asyncio.Task[None] | None = None
        """What keeps the watch."""
        self._bus = bus

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition, as long as anything goes on."""
        while not condition():
            self.mesh.check()
            if self.looking is not None and self.looking.done():
                self.looking.result()
            stalled_s = time.monotonic() - self.watch.progress_at
            assert stalled_s < STALLED_S, f"no result for {stalled_s:.0f} s, wanted: {what}\n{self._ends_of_logs()}"
            await asyncio.sleep(0.01)

    async def produce(self) -> None:
        """The client: sends all batches, some ahead of those that have ended, and waits for their results."""
        async with (
            self._bus.producer() as producer,
            CommandChannel(self._bus, producer, name="client", silence_s=STALLED_S) as channel,
            asyncio.TaskGroup() as waiting,
        ):
            for number in range(BATCHES_SENT):
                await self.until(lambda n=number: n < len(self.watch.ended) + AHEAD, f"batch {number} to be sent")  # type: ignore[misc]
                tasks = batch_of(number)
                if is_submitted(number):
                    await self._submit(channel, tasks[0])
                for task in tasks:
                    await (await producer.send(TASKS, task.task_id, task))
                if is_submitted(number):
                    waiting.create_task(self._finalize(channel, tasks[0]))
            await self.until(lambda: len(self.watch.ended) == BATCHES_SENT, "the last batches")

    async def _submit(self, channel: CommandChannel, task: Task) -> None:
        batch: dict[str, Any] = {"batch_id": task.batch_id, "batch_type": task.batch_type}
        reply = await channel.ask(SubmitBatch, **batch, expected_task_count=TASKS_IN_BATCH)
        assert reply.error is None, reply

    async def _finalize(self, channel: CommandChannel, task: Task) -> None:
        assert task.batch_id is not None
        batch: dict[str, Any] = {"batch_id": task.batch_id, "batch_type": task.batch_type}
        # Twice at once: whoever waits for a batch gets what everybody gets.
        replies = [
            await reply
            for reply in [
                asyncio.ensure_future(channel.ask(FinalizeBatch, **batch, timeout_s=FINALIZE_S)) for _ in range(2)
            ]
        ]
        for reply in replies:
            assert reply.error is None, reply
            assert reply.result is not None
            self.replies.setdefault(task.batch_id, reply.result)
            assert self.replies[task.batch_id] == reply.result

    async def kill(self, plan: list[tuple[int, str]], rng: random.Random) -> None:
        """Kills as planned: (after so many results, a process of this role)."""
        for after, role in plan:
            await self.until(lambda n=after: self.watch.results >= n, f"result {after}")  # type: ignore[misc]
            await self.until(lambda r=role: self._kill_one(r, rng), f"a {role} to kill")  # type: ignore[misc]

    def _kill_one(self, role: str, rng: random.Random) -> bool:
        if role == "broker":
            return self.mesh.kill_broker()
        if role in BELOW:
            return self.mesh.kill_below(rng.choice(self.mesh.of_role("explorer")), role, rng)
        if role in ("active", "standby"):
            is_active = role == "active"
            found = [s for s in self.mesh.of_role("coordinator") if (s.name == self.watch.active) is is_active]
        else:
            found = self.mesh.of_role(role)
        return bool(found) and rng.choice(found).kill()

    async def outcome(self) -> Outcome:
        """What its log holds, and what its client was told."""
        return await MeshLog.read(self._bus), self.replies

    def _ends_of_logs(self) -> str:
        return "\n".join(
            f"-- {s.name}, incarnation {s.incarnations}\n{tail(s.log, 8)}" for s in self.mesh.services.values()
        )


@contextlib.asynccontextmanager
async def running(mesh: FaultMesh) -> AsyncIterator[Run]:
    """A mesh with an eye on it."""
    async with mesh, Bus(mesh.kafka, client_id="test") as bus:
        await bus.ensure_topics()
        run = Run(mesh, bus)
        run.looking = looking = asyncio.create_task(run.watch.look(bus))
        try:
            yield run
        finally:
            looking.cancel()
            await asyncio.wait([looking])


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


def make_plan(rng: random.Random) -> list[tuple[int, str]]:
    """Kills spread over the work: none after its last quarter, so that each has something to spoil."""
    roles = [role for role, count in KILLS.items() for _ in range(count)]
    rng.shuffle(roles)
    last = BATCHES_SENT * TASKS_IN_BATCH * 3 // 4
    moments = sorted(rng.randrange(1, last) for _ in roles)
    return list(zip(moments, roles, strict=True))


async def test_nothing_is_lost_and_nothing_counts_twice_under_sigkills(tmp_path: Path) -> None:
    seed = int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FAULT_SEED={seed}")
    rng = random.Random(seed)  # noqa: S311 - a schedule of kills
    plan = make_plan(rng)

    async def main() -> tuple[Outcome, Outcome, Counter[str]]:
        began = time.monotonic()
        disturbed = mesh_in(tmp_path / "disturbed")
        async with running(disturbed) as run:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.produce())
                group.create_task(run.kill(plan, rng))
            disturbed_s = time.monotonic() - began
            found = await run.outcome()
            calm = mesh_in(tmp_path / "calm", disturbed.broker, engine_delay_s=0.0)
            async with running(calm) as calm_run:
                await calm_run.produce()
                expected = await calm_run.outcome()
        incarnations = {service.name: service.incarnations for service in disturbed.services.values()}
        print(
            f"{disturbed_s:.0f} s disturbed, {time.monotonic() - began - disturbed_s:.0f} s calm; runs: {incarnations}"
        )
        return found, expected, disturbed.kills

    (log, replies), (calm_log, calm_replies), kills = await main()
    print(f"SIGKILLs: {dict(kills)}, together {kills.total()}")
    assert kills.total() >= 50
    for of_run, told in ((log, replies), (calm_log, calm_replies)):
        of_run.check(max_staleness=MAX_STALENESS, max_inflight_batches=MAX_INFLIGHT)
        of_run.check_replies(told)
    assert log.contents() == calm_log.contents()
    assert log.repeated() == []
    said = "".join(output.read_text() for output in tmp_path.glob("disturbed/explorer-*.log"))
    # Runners that died with their explorer told nobody, and one may have been killed in the moment before that.
    assert len(re.findall(r"runner \S+ was ended by SIGKILL", said)) >= KILLS["runner"] // 2
    for output in sorted(tmp_path.glob("*/*.log")):
        before, found, after = output.read_text().partition("Traceback")
        assert not found, f"{output.name}: {before[-500:]}{found}{after[:4000]}"
