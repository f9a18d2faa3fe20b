"""A fleet of explorers that are numbers, and one trainer, around the coordinator: what they write, and when.

Explorers write what real ones do: heartbeats at their interval and whenever their state or version changes, a result
for each attempt, and that they have taken a version. Bytes are made beforehand as far as possible: none of what they
cost is the coordinator's.
"""

import heapq
import random
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchmarks._fleet.coordinator import CoordinatorCost, Sent, SimulatedCoordinator, arrive
from benchmarks._records import completed, step_trained, synced
from schemas import Cancel, Dispatch, ExplorerHeartbeat, ModelVersion, Record, SetPace, Task
from schemas.codec import encode
from schemas.event import RunningAttempt
from schemas.topic import Topic
from schemas.topics import EXPLORER_EVENTS, TASKS, TRAINER_EVENTS
from trinity_bus.config import CoordinatorSettings, ExplorerSettings

INCARNATION: Final = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
WORKFLOWS: Final = [f"workflow-{number}" for number in range(8)]
MARK: Final = 1234567.0
"""Stands for the time in prepared heartbeats."""
SYNC_S: Final = 2.0
BATCH: Final = 512
BACKLOG: Final = 4


@dataclass(slots=True)
class SimulatedExplorer:
    name: str
    slots: int
    key: bytes
    running: dict[tuple[str, int], Dispatch] = field(default_factory=dict)
    freed: deque[float] = field(default_factory=deque)
    """When results were written whose slots are free since."""
    version: int = -1
    syncing: bool = False
    alive: bool = True
    pace_s: float = 0.0
    beat: tuple[bytes, int] | None = None
    """The heartbeat of now, and where its time stands."""

    def heartbeat(self, now: float) -> bytes:
        if self.beat is None:
            value = encode(
                ExplorerHeartbeat(
                    explorer=self.name,
                    incarnation=INCARNATION,
                    state="syncing" if self.syncing else "ready",
                    slots=self.slots,
                    running=[RunningAttempt(task_id=task_id, attempt=number) for task_id, number in self.running],
                    model_version=self.version,
                    workflows=WORKFLOWS,
                    tokens_generated=1 << 20,
                    sent_at=MARK,
                    model="policy",
                    abilities=["logprobs", "tools"],
                    max_model_len=32768,
                    address=f"10.0.0.1:{8000 + len(self.name)}",
                    address_proof="0" * 64,
                    pace_s=self.pace_s,
                )
            )
            self.beat = value, value.index(struct.pack(">d", MARK))
        value, at = self.beat
        return value[:at] + struct.pack(">d", now) + value[at + 8 :]


class SimulatedMesh:
    def __init__(self, explorers: int, slots: int, seed: int) -> None:
        self.capacity = explorers * slots
        self.batch = min(BATCH, self.capacity)
        self.wanted = (-(-self.capacity // self.batch) + BACKLOG) * self.batch
        settings = CoordinatorSettings(
            batch_size=self.batch,
            group_size=1,
            max_staleness=1_000_000,
            max_inflight_batches=2 * self.capacity // self.batch + 2 * BACKLOG,
            max_open_tasks=2 * self.capacity + 2 * BACKLOG * BATCH,
            max_open_bytes=4 << 30,
            task_timeout_s=1e6,
        )
        self.coordinator = SimulatedCoordinator(settings, self._heard)
        self.explorers = {
            name: SimulatedExplorer(name, slots, name.encode())
            for name in (f"explorer-{number:05d}" for number in range(explorers))
        }
        self.interval_s = ExplorerSettings().heartbeat_s
        self.dispatched: list[float] = []
        """How long each free slot was free, until the order was committed that takes it."""
        self.sent = self.answered = 0
        self.version = -1
        self.given_up = 0
        """Transfers that were under way when their explorer was named for another version."""
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0

    # -- what is done to it ------------------------------------------------------------------------------------------

    def join(self, within_s: float) -> CoordinatorCost:
        for number, explorer in enumerate(self.explorers.values()):
            self._at(self.now + within_s * number / len(self.explorers), self._beating(explorer))
        self._write(self.now, TRAINER_EVENTS, b"trainer-0", step_trained(0, INCARNATION))
        spent = self.run(within_s)
        machine = self.coordinator.machine
        return self.run_until(lambda: len(machine.fleet.explorers) == len(self.explorers), spent)

    def publish(self) -> CoordinatorCost:
        self._trained()
        return self.run_until(self._is_served)

    def publish_in_a_row(self, after_s: float) -> CoordinatorCost:
        self._trained()
        spent = self.run(after_s)
        self._trained()
        return self.run_until(self._is_served, spent)

    def fill(self) -> CoordinatorCost:
        for _ in range(self.wanted):
            self.send(self.now)
        return self.run_until(lambda: self.running >= self.capacity)

    def kill(self, share: float) -> CoordinatorCost:
        for explorer in self._random.sample(list(self.explorers.values()), max(1, int(len(self.explorers) * share))):
            explorer.alive = False
        gone = {name for name, explorer in self.explorers.items() if not explorer.alive}
        fleet = self.coordinator.machine.fleet
        return self.run_until(lambda: all(fleet.explorers[name].gone for name in gone))

    def work(self, rate: float, seconds: float) -> CoordinatorCost:
        """Have attempts end at this rate, and send as many tasks, for so long."""
        self.dispatched.clear()
        busy = self._alive
        at = self.now
        while (at := at + self._random.expovariate(rate)) < self.now + seconds:
            self._at(at, lambda now: self._end_one(self._random.choice(busy), now))
        return self.run(seconds)

    def send(self, now: float) -> None:
        self.sent += 1
        name = f"task-{self.sent:08d}"
        self._write(now, TASKS, name.encode(), Task(task_id=name, workflow=WORKFLOWS[0], prompt="What is 17 + 25?"))

    # -- time --------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.coordinator.now

    @property
    def running(self) -> int:
        return sum(len(explorer.running) for explorer in self.explorers.values())

    @property
    def _alive(self) -> list[SimulatedExplorer]:
        return [explorer for explorer in self.explorers.values() if explorer.alive]

    def run(self, seconds: float) -> CoordinatorCost:
        """Let time pass, then all be read that has come until then."""
        self.coordinator.spent = spent = CoordinatorCost()
        until = self.now + seconds
        while self.now < until:
            self._step(until)
        inbox = self.coordinator.inbox
        while inbox.first(signals=True, tasks=False) <= until:
            self.coordinator.step(until)
        return spent

    def run_until(self, condition: Callable[[], bool], spent: CoordinatorCost | None = None) -> CoordinatorCost:
        self.coordinator.spent = spent = spent or CoordinatorCost()
        while not condition():
            for _ in range(20):
                self._step(self.now + 1.0)
        return spent

    def _step(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= self.now:
            at, _, happens = heapq.heappop(self._queue)
            happens(at)
        if self._queue:
            until = min(until, self._queue[0][0])
        self.coordinator.step(until)

    def _at(self, when: float, happens: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, happens))

    # -- what trainer and explorers do -------------------------------------------------------------------------------

    def _trained(self) -> None:
        self.version += 1
        self._write(self.now, TRAINER_EVENTS, b"trainer-0", step_trained(self.version, INCARNATION))

    def _is_served(self) -> bool:
        return all(explorer.version == self.version for explorer in self._alive)

    def _write(self, now: float, topic: Topic, key: bytes, record: Record | bytes) -> None:
        value = record if isinstance(record, bytes) else encode(record)
        arrive(self.coordinator.inbox, (now, topic, key, value))

    def _beating(self, explorer: SimulatedExplorer) -> Callable[[float], None]:
        def beat(now: float) -> None:
            if explorer.alive:
                self._write(now, EXPLORER_EVENTS, explorer.key, explorer.heartbeat(now))
                self._at(now + max(self.interval_s, explorer.pace_s), beat)

        return beat

    def _tell(self, explorer: SimulatedExplorer, now: float) -> None:
        explorer.beat = None
        self._write(now, EXPLORER_EVENTS, explorer.key, explorer.heartbeat(now))

    def _heard(self, now: float, sent: Sent) -> None:
        match record := sent[2]:
            case Dispatch(explorer=name) if self._is_alive(name):
                explorer = self.explorers[name]
                explorer.running[record.task.task_id, record.attempt] = record
                explorer.beat = None
                if explorer.freed:
                    self.dispatched.append(now - explorer.freed.popleft())
            case Cancel(explorer=name) if self._is_alive(name):
                explorer = self.explorers[name]
                explorer.running.pop((record.task_id, record.attempt), None)
                explorer.beat = None
            case SetPace(explorer=name, pace_s=pace_s) if self._is_alive(name):
                explorer = self.explorers[name]
                explorer.pace_s = pace_s
                self._tell(explorer, now)
            case ModelVersion(members=members):
                for member in members:
                    if self._is_alive(member.explorer):
                        explorer = self.explorers[member.explorer]
                        self.given_up += explorer.syncing
                        explorer.syncing = True
                        self._tell(explorer, now)
                        self._at(now + SYNC_S, self._synced(explorer, record))

    def _is_alive(self, name: str) -> bool:
        return self.explorers[name].alive

    def _synced(self, explorer: SimulatedExplorer, version: ModelVersion) -> Callable[[float], None]:
        def take(now: float) -> None:
            if not explorer.alive:
                return
            explorer.version, explorer.syncing = version.version, False
            self._write(now, EXPLORER_EVENTS, explorer.key, synced(version, explorer.name, INCARNATION))
            self._tell(explorer, now)

        return take

    def _end_one(self, explorer: SimulatedExplorer, now: float) -> None:
        if not explorer.running:
            return
        order = explorer.running.pop(next(iter(explorer.running)))
        explorer.beat = None
        explorer.freed.append(now)
        self.answered += 1
        answer = completed(order, version=explorer.version, seconds=1.0, offset=self.answered, response_tokens=400)
        self._write(now, EXPLORER_EVENTS, explorer.key, answer)
        self.send(now)
