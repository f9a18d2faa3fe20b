"""The coordinator without brokers, in simulated time that its own processor time is part of.

What it is made of is real: records come as bytes, are decoded and become inputs as in the service, the machine decides,
the schedule says when to read and to commit, and what is written is encoded, with the entries of the changelog. Only
the brokers are missing: a transaction takes ``TRANSACTION_S`` of simulated time, and fetching costs nothing.
"""

import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from aiokafka import ConsumerRecord

from schemas import Record
from schemas.codec import encode
from schemas.topic import Topic
from schemas.topics import DEAD_LETTERS, TASKS
from trinity_bus.bus import Bus, Producer, Received
from trinity_bus.bus.read.received import receive
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination import CommitSchedule, CoordinatorMachine, Tick
from trinity_bus.coordination.commit_schedule import MAX_SIGNALS, MAX_TASKS
from workers.coordinator.log_facts import Lanes
from workers.coordinator.outputs import Changelog, Outputs, Positions
from workers.coordinator.pending_commit import PendingCommit, Spans

TRANSACTION_S = 0.008
"""As measured on a real broker."""

type Arrival = tuple[float, Topic, bytes, bytes]
"""When, where, key and value."""
type Sent = tuple[Topic, str, Record]
"""Where, key and record."""


@dataclass(slots=True)
class CoordinatorCost:
    cpu_s: float = 0.0
    longest_s: float = 0.0
    """That the machine has taken for what it decided upon at once."""
    signals: int = 0
    written: int = 0
    largest: int = 0


class Writer:
    """Takes the place of the producer: encodes what it is given, and keeps the orders."""

    def __init__(self, spent: Callable[[], CoordinatorCost]) -> None:
        self.sent: list[Sent] = []
        self._spent = spent

    async def send(self, topic: Topic, key: str, record: Record, **_: object) -> None:
        self._count(topic, key, encode(record))
        self.sent.append((topic, key, record))

    async def send_dead_letter(self, received: Received[Any], reason: str, detail: str) -> None:
        self._count(DEAD_LETTERS, reason + detail, received.raw)

    async def send_all(self, topic: Topic, entries: Iterable[tuple[str, bytes | None]], **_: object) -> None:
        for key, value in entries:
            self._count(topic, key, value or b"")

    def _count(self, topic: Topic, key: str, value: bytes) -> None:
        if len(value) > topic.max_message_bytes:
            raise ValueError(f"{key} on {topic.name}: {len(value)} bytes")
        spent = self._spent()
        spent.written += len(key) + len(value)
        spent.largest = max(spent.largest, len(value))


@dataclass(slots=True)
class Inbox:
    signals: deque[Arrival] = field(default_factory=deque)
    tasks: deque[Arrival] = field(default_factory=deque)

    def first(self, *, signals: bool, tasks: bool) -> float:
        wanted = [box[0][0] for box, wants in ((self.signals, signals), (self.tasks, tasks)) if wants and box]
        return min(wanted, default=float("inf"))


class SimulatedCoordinator:
    """The service's loop, step by step. ``committed`` is told what others may read from now on, and when that is."""

    def __init__(self, settings: CoordinatorSettings, committed: Callable[[float, Sent], None]) -> None:
        self._settings = settings
        self.inbox = Inbox()
        self.spent = CoordinatorCost()
        self.now = 0.0
        self.machine = CoordinatorMachine(settings, SynchronizerSettings(sync_timeout_s=1e6))
        self._committed = committed
        self._changelog = Changelog()
        self._writer = Writer(lambda: self.spent)
        self._outputs = Outputs(cast("Producer", self._writer))
        # Nobody here tells of a lane, so no broker is asked.
        self._lanes = Lanes(cast("Bus", None), time.monotonic)
        self._schedule = CommitSchedule(settings.tick_s, settings.heartbeat_s, now=0.0)
        self._pending = PendingCommit(Spans("fleet"))
        self._ends_at: float | None = None
        self._positions: Positions = {}
        self._offset = 0

    def step(self, until: float) -> None:
        plan = self._schedule.plan(self.now, wants_tasks=self.machine.wants_tasks())
        first = self.inbox.first(signals=plan.signals, tasks=plan.tasks)
        ends = float("inf") if self._ends_at is None else self._ends_at
        if not self.machine.has_more:
            self.now = max(self.now, min(first, plan.until, ends, until))
        began = time.thread_time()
        arrived = [*self._taken(self.inbox.signals, MAX_SIGNALS if plan.signals else 0)]
        self.spent.signals += len(arrived)
        arrived += self._taken(self.inbox.tasks, MAX_TASKS if plan.tasks else 0)
        ticks = self._schedule.tick(self.now)
        if arrived or ticks or self.machine.has_more:
            self._decide(arrived, ticks=ticks)
        began = self._pass(began)
        if self._ends_at is not None and self.now >= self._ends_at:
            self._ends_at = None
            self._schedule.ended(self.now)
        if self._schedule.is_due(self.now):
            self._commit(began)

    def restored_s(self) -> float:
        began = time.thread_time()
        machine = CoordinatorMachine(self._settings, SynchronizerSettings(sync_timeout_s=1e6))
        machine.restore(self._changelog.entries.items())
        return time.thread_time() - began

    def _taken(self, box: deque[Arrival], most: int) -> Iterable[Arrival]:
        while box and most and box[0][0] <= self.now:
            most -= 1
            yield box.popleft()

    def _decide(self, arrived: list[Arrival], *, ticks: bool) -> None:
        received = []
        for _, topic, key, value in arrived:
            self._offset += 1
            record = ConsumerRecord(topic.name, 0, self._offset, 0, 0, key, value, None, len(key), len(value), ())
            received.append(receive(topic, record, topic.records))
            self._positions[topic.name, 0] = self._offset + 1
        inputs, tasks, task_bytes = self._pending.take(received)
        self._schedule.took(self.now, signals=len(received) - tasks, tasks=tasks, task_bytes=task_bytes)
        if ticks:
            inputs.append(Tick())
        began = time.thread_time()
        effects = self.machine.handle_all(inputs, self.now)
        self.spent.longest_s = max(self.spent.longest_s, time.thread_time() - began)
        self._pending.effects += effects
        self._schedule.decided(effects)

    def _commit(self, began: float) -> None:
        changes = self.machine.changes()
        pending, self._pending = self._pending, PendingCommit(Spans("fleet"))
        plan = self._schedule.begin(self.now, has_news=bool(pending.effects or changes or pending.unreadable))
        if plan is not None:
            if plan.beats:
                self.machine.heartbeat("fleet", "0")
            with pending.spans:
                _at_once(self._outputs.carry_out(pending.effects, pending.originals, pending.spans, self._lanes))
                _at_once(self._outputs.record_changes(changes, self._positions))
            self._changelog.committed(changes, dict(self._positions))
            self._ends_at = self.now + TRANSACTION_S
        self._pass(began)
        sent, self._writer.sent = self._writer.sent, []
        for one in sent:
            self._committed(self.now + TRANSACTION_S, one)

    def _pass(self, began: float) -> float:
        now = time.thread_time()
        self.spent.cpu_s += now - began
        self.now += now - began
        return time.thread_time()


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise RuntimeError("it waits for something")


def arrive(inbox: Inbox, arrival: Arrival) -> None:
    (inbox.tasks if arrival[1] is TASKS else inbox.signals).append(arrival)
