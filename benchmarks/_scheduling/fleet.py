"""A fleet in simulated time: the real ``CoordinatorMachine``, 64 explorers that are numbers in a heap, and a trainer.

Rollout times are log-normal with sigma 1: the mean is 1.65 times the median, and of 128 the slowest takes 13 medians.
Each attempt draws its own time, a speculative one too. Every figure is of slots, from the moment at which all are taken
for the first time to the moment at which the last task is handed out:

* busy: the share of time in which a slot runs something;
* useful: the share in which it runs what a manifest names in the end; copies that lost and tasks that were cut off are
  not useful.

The best possible is what the same slots do with the same times when each takes the next task at once, whatever batch or
version it belongs to: all the work, and no waiting but at the end.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks._records import completed, step_trained, synced
from schemas import BatchLifecycleState, BatchRecord, Cancel, Dispatch, ExplorerHeartbeat, ModelVersion, Task
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination import CoordinatorMachine, Effect, EventArrived, Input, Origin, TaskArrived, Tick, Write

EXPLORERS, SLOTS = 64, 1
BATCH = 128
MEDIAN_S, SIGMA = 10.0, 1.0
TRAIN_S, SYNC_S = 5.0, 1.0
TICK_S = 1.0
INCARNATION = "life-1"


@dataclass(slots=True)
class Spent:
    busy_s: float = 0.0
    useful_s: float = 0.0
    window_s: float = 0.0
    steps: int = 0
    """Batches that were trained on in the window."""
    staleness: float = 0.0
    """Mean over the tasks that count: versions between what drew them and what they trained."""

    @property
    def busy(self) -> float:
        return self.busy_s / (self.window_s * EXPLORERS * SLOTS)

    @property
    def useful(self) -> float:
        return self.useful_s / (self.window_s * EXPLORERS * SLOTS)


@dataclass(slots=True)
class Running:
    order: Dispatch
    began: float
    version: int
    cancelled: bool = False


@dataclass(slots=True)
class Simulation:
    settings: CoordinatorSettings
    batches: int
    seed: int
    machine: CoordinatorMachine = field(init=False)
    now: float = 0.0
    versions: dict[str, int] = field(default_factory=dict)
    running: dict[tuple[str, int], Running] = field(default_factory=dict)
    ended: dict[tuple[str, int], tuple[float, float, int]] = field(default_factory=dict)
    """Of every attempt: when it began and ended, and the version that drew it."""
    finalized: list[tuple[float, BatchRecord]] = field(default_factory=list)
    full_at: float | None = None
    last_order_at: float = 0.0
    trainer_free_at: float = 0.0
    _queue: list[tuple[float, int, Callable[[], Input | None]]] = field(default_factory=list)
    _count: Any = field(default_factory=itertools.count)
    _inbox: deque[Input] = field(default_factory=deque)

    def run(self) -> Spent:
        self.machine = CoordinatorMachine(self.settings, SynchronizerSettings(sync_timeout_s=1e6))
        for number in range(EXPLORERS):
            self.versions[f"explorer-{number:02d}"] = 0
        self._inbox.extend(EventArrived(self._beat(name)) for name in self.versions)
        self._inbox.append(EventArrived(step_trained(0, INCARNATION)))
        sent, total = 0, self.batches * BATCH
        while len(self.finalized) < self.batches:
            while sent < total and self.machine.wants_tasks():
                self._inbox.append(
                    TaskArrived(Task(task_id=f"task-{sent}", workflow="math", prompt="?"), Origin(0, sent))
                )
                sent += 1
                if len(self._inbox) >= BATCH:
                    self._decide()
            self._decide()
            self._advance()
        return self._spent()

    def _decide(self) -> None:
        given, self._inbox = list(self._inbox), deque()
        for command in self.machine.handle_all(given, self.now):
            self._carry_out(command)
        # The changelog is not kept here, but must not grow.
        self.machine.changes()

    def _advance(self) -> None:
        if not self._queue or self._queue[0][0] > self.now + TICK_S:
            self.now += TICK_S
            self._inbox.append(Tick())
            return
        self.now = self._queue[0][0]
        while self._queue and self._queue[0][0] <= self.now:
            given = heapq.heappop(self._queue)[2]()
            if given is not None:
                self._inbox.append(given)

    def _later(self, seconds: float, happens: Callable[[], Input | None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._count), happens))

    def _carry_out(self, command: Effect) -> None:
        match command:
            case Write(record=Dispatch() as order):
                self._start(order)
            case Write(record=Cancel() as cancel):
                key = cancel.task_id, cancel.attempt
                running = self.running.pop(key, None)
                if running is not None:
                    running.cancelled = True
                    self.ended[key] = running.began, self.now, running.version
            case Write(record=ModelVersion() as version):
                self._later(SYNC_S, lambda: self._sync(version))
            case Write(record=BatchRecord() as batch) if batch.state is BatchLifecycleState.FINALIZED:
                self.finalized.append((self.now, batch))
                self.trainer_free_at = max(self.now, self.trainer_free_at) + TRAIN_S
                self._later(
                    self.trainer_free_at - self.now, lambda: EventArrived(step_trained(batch.sequence, INCARNATION))
                )

    def _start(self, order: Dispatch) -> None:
        key = order.task.task_id, order.attempt
        # The same attempt takes the same time in every simulation with this seed.
        drawn = random.Random(f"{self.seed}/{key}")  # noqa: S311 - no secret
        running = self.running[key] = Running(order, self.now, self.versions[order.explorer])
        self.last_order_at = self.now
        if self.full_at is None and len(self.running) >= EXPLORERS * SLOTS:
            self.full_at = self.now
        self._later(drawn.lognormvariate(math.log(MEDIAN_S), SIGMA), lambda: self._end(running))

    def _end(self, running: Running) -> Input | None:
        order = running.order
        if running.cancelled:
            return None
        key = order.task.task_id, order.attempt
        del self.running[key]
        self.ended[key] = running.began, self.now, running.version
        return EventArrived(completed(order, version=running.version, seconds=self.now - running.began))

    def _sync(self, version: ModelVersion) -> None:
        for member in version.members:
            self.versions[member.explorer] = version.version
            answer = synced(version, member.explorer, INCARNATION)
            self._inbox.append(EventArrived(answer))

    def _beat(self, name: str) -> ExplorerHeartbeat:
        return ExplorerHeartbeat(
            explorer=name, incarnation=INCARNATION, state="ready", slots=SLOTS, model_version=0, workflows=["math"]
        )

    def _spent(self) -> Spent:
        begin, end = self.full_at or 0.0, self.last_order_at
        spent = Spent(window_s=end - begin)
        counted = {
            (entry.task_id, part.attempt): batch.sequence
            for _, batch in self.finalized
            for entry in batch.manifest
            for part in entry.parts
        }
        late = []
        for key, (began, ended, version) in self.ended.items():
            inside = max(0.0, min(ended, end) - max(began, begin))
            spent.busy_s += inside
            if key in counted:
                spent.useful_s += inside
                late.append(counted[key] - 1 - version)
        spent.steps = sum(1 for at, _ in self.finalized if begin <= at <= end)
        spent.staleness = sum(late) / len(late)
        return spent


def best_possible(batches: int, seed: int) -> float:
    """Busy share of the same slots with the same times, each taking the next task at once, until the last is taken."""
    free = [0.0] * (EXPLORERS * SLOTS)
    busy_until: list[tuple[float, float]] = []
    for number in range(batches * BATCH):
        drawn = random.Random(f"{seed}/{(f'task-{number}', 1)}")  # noqa: S311 - no secret
        began = heapq.heappop(free)
        ended = began + drawn.lognormvariate(math.log(MEDIAN_S), SIGMA)
        heapq.heappush(free, ended)
        busy_until.append((began, ended))
    end = max(began for began, _ in busy_until)
    return sum(min(ended, end) - began for began, ended in busy_until) / (end * EXPLORERS * SLOTS)
