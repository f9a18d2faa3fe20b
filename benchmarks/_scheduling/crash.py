"""What a crash costs, in trajectory-generation-seconds: the time that was spent on trajectories that are lost.

The accounting is that of verl's RFC 7579. A history of crashes, each at another position of the checkpoint cycle, is
lived through with the real broker, coordinator and explorers, and a trainer's side that checkpoints every few steps:
SIGKILL, start again, go on. Afterwards the log says what happened:

* measured: seconds of every trajectory that was generated again although one of the same task was finished and durable;
* computed, for the same history: what a buffer in memory would have lost at each crash, which is every trajectory
  finished and not part of the newest checkpoint; and what one would have lost that is saved with each checkpoint, which
  is every trajectory finished after it. Trajectories that were under way are left out on both sides.
"""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks._scheduling.consumer import CHECKPOINT_EVERY, Step, steps_of
from benchmarks._scheduling.mesh import LIMIT_S, Mesh
from schemas import BatchLifecycleState, BatchRecord, RolloutFinished, Task
from schemas.topics import BATCHES, EXPLORER_EVENTS, TASKS
from trinity_bus.bus import Bus, Producer, Reader

VICTIMS = ("coordinator", "consumer", "broker")
BATCH = 64
THINK_S = 2.0
AHEAD = 10
"""Batches of tasks that are in the log and not finalized."""
POLL_S = 0.02
SETTINGS = {
    "coordinator.batch_size": str(BATCH),
    "coordinator.group_size": "1",
    "coordinator.max_staleness": "4",
    "coordinator.max_inflight_batches": "5",
    # No explorer dies here, and a busy machine must not make it look so.
    "coordinator.explorer_timeout_s": "60",
    "explorer.slots": "64",
}


@dataclass(frozen=True, slots=True)
class Crash:
    victim: str
    position: int
    """Steps since the newest checkpoint."""
    at: float
    recovered_s: float


@dataclass(slots=True)
class Cost:
    crashes: list[Crash] = field(default_factory=list)
    trajectories: int = 0
    again: int = 0
    """Trajectories that were generated although one was finished and durable."""
    again_s: float = 0.0
    unanswered: int = 0
    """Tasks that have no completed result in a manifest, or more than one."""
    memory_s: list[float] = field(default_factory=list)
    """Computed for each crash: lost by a buffer in memory."""
    saved_s: list[float] = field(default_factory=list)
    """Likewise: by one that is saved with each checkpoint."""


class History:
    def __init__(self, mesh: Mesh, bus: Bus) -> None:
        self._mesh = mesh
        self._bus = bus
        self._folder = mesh.folder
        self._sent = 0
        self._finalized: list[BatchRecord] = []
        self._since = 0.0

    async def live(self, plan: Sequence[tuple[int, str]]) -> Cost:
        """Keep the mesh at work, and crash it as planned; at the end, all that was sent is waited for."""
        cost = Cost()
        self._mesh.start("consumer", [sys.executable, "-m", "benchmarks._scheduling.consumer", self._folder], {})
        self._since = time.time()
        async with self._bus.producer() as producer, self._bus.reader(BATCHES, start="beginning") as batches:
            feeding = asyncio.create_task(self._feed(producer))
            watching = asyncio.create_task(self._watch(batches))
            try:
                for position, victim in plan:
                    await self._until(lambda position=position: self._is_at(position))  # type: ignore[misc]
                    cost.crashes.append(await self._crash(victim, position))
                feeding.cancel()
                await asyncio.wait([feeding])
                await self._until(lambda: sum(len(batch.manifest) for batch in self._finalized) >= self._sent)
            finally:
                for task in (feeding, watching):
                    task.cancel()
                await asyncio.wait([feeding, watching])
            # Whatever else was raised in them is raised here.
            for task in (feeding, watching):
                if not task.cancelled():
                    task.result()
        await self._account(cost)
        return cost

    async def _kill(self, victim: str) -> None:
        if victim == "broker":
            broker = self._mesh.broker
            assert broker is not None
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGKILL)
            await asyncio.to_thread(broker.wait, LIMIT_S)
            await asyncio.to_thread(broker.start)
        else:
            await asyncio.to_thread(self._mesh.start_again, victim)

    async def _feed(self, producer: Producer) -> None:
        while True:
            while self._sent < (len(self._finalized) + AHEAD) * BATCH:
                for _ in range(BATCH):
                    task = Task(task_id=f"task-{self._sent}", workflow="math", prompt="What is 2 + 2?", answer="4")
                    await producer.send(TASKS, task.task_id, task)
                    self._sent += 1
            await asyncio.sleep(POLL_S)

    async def _watch(self, batches: Reader) -> None:
        while True:
            for received in await batches.batch(1.0):
                batch = received.record
                if isinstance(batch, BatchRecord) and batch.state is BatchLifecycleState.FINALIZED:
                    self._finalized.append(batch)

    def _is_at(self, position: int) -> bool:
        steps = self._steps_of_this_life()
        return any(step.is_checkpoint for step in steps) and steps[-1].step % CHECKPOINT_EVERY == position

    def _steps_of_this_life(self) -> list[Step]:
        return [step for step in steps_of(self._folder) if step.at > self._since]

    async def _crash(self, victim: str, position: int) -> Crash:
        at = time.time()
        await self._kill(victim)
        self._since = time.time()
        await self._until(lambda: bool(self._steps_of_this_life()))
        return Crash(victim, position, at, time.time() - at)

    async def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            self._mesh.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the mesh does not go on; see {self._folder}")
            await asyncio.sleep(POLL_S)

    async def _account(self, cost: Cost) -> None:
        """Read off the log what was done twice, lost, or never."""
        finished: dict[str, list[tuple[float, float]]] = {}
        async with self._bus.reader(EXPLORER_EVENTS, start="beginning") as events:
            async for received in events.replay():
                event = received.record
                if isinstance(event, RolloutFinished) and event.status == "completed":
                    finished.setdefault(event.task_id, []).append((received.timestamp_ms / 1000, event.seconds))
        counted = [entry for batch in self._finalized for entry in batch.manifest if entry.status == "completed"]
        cost.trajectories = len(counted)
        answers = Counter(entry.task_id for entry in counted)
        cost.unanswered = sum(answers[f"task-{number}"] != 1 for number in range(self._sent))
        for attempts in finished.values():
            attempts.sort()
            # One whose generation began before the other was durable was not generated again, but at the same time.
            late = [seconds for at, seconds in attempts[1:] if at - seconds > attempts[0][0]]
            cost.again += len(late)
            cost.again_s += sum(late)
        first = {task_id: attempts[0] for task_id, attempts in finished.items()}
        steps = steps_of(self._folder)
        for crash in cost.crashes:
            checkpoints = [step for step in steps if step.is_checkpoint and step.at <= crash.at]
            newest = max(checkpoints, key=lambda step: step.step)
            kept = {task for step in steps if step.step <= newest.step for task in step.tasks}
            lost = {task: at for task, (at, _) in first.items() if at <= crash.at and task not in kept}
            cost.memory_s.append(sum(first[task][1] for task in lost))
            cost.saved_s.append(sum(first[task][1] for task, at in lost.items() if at > newest.at))
