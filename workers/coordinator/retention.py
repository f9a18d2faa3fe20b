"""Deletes from the log what nobody needs any more: the thin shell around :class:`~trinity_bus.coordination.Retention`.

::

    every retention_s, while this coordinator works:
        wait until what was decided at the last look is committed
        read what is new in batches and version-history
        ask for ends and ages --> look --> delete records; tombstones go into the next transaction

Where the broker does not answer, or the user may not delete, there is a line in the log, and the next round;
`trinity-bus access apply` gives the right, and until then topics grow up to their budget. What was not deleted is found
again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from schemas import BatchRecord, Position, TrainerHeartbeat
from schemas.topic import Topic
from schemas.topics import BATCHES, COORDINATOR_INPUTS, DEMONSTRATIONS, EXPERIENCES, PREFERENCES, TURNS, VERSION_HISTORY
from trinity_bus.bus import Bus, Received, Undecodable
from trinity_bus.coordination import CoordinatorMachine, Retention
from trinity_bus.coordination.retention import Cuts, RetentionSnapshot
from trinity_bus.errors import BusError
from trinity_bus.telemetry import conventions as names
from workers.coordinator import observations
from workers.coordinator.outputs import Positions

log = logging.getLogger("workers.coordinator")

_POLL_S = 0.05
_TRIMMED = (*COORDINATOR_INPUTS, EXPERIENCES, TURNS)
# A trainer may learn from all of them once more: above their budget Kafka deletes the oldest all the same.
_NEVER_TRIMMED = (DEMONSTRATIONS, PREFERENCES)


@dataclass(slots=True)
class Commits:
    """What is committed, as the service tells."""

    positions: Positions  # of the inputs
    count: int = 0
    # Milliseconds since the epoch, as the newest record says that was read: how old records are is for the clocks to
    # say that have dated them. 0 before one was read; nothing is old then.
    time_ms: int = 0

    def made(self, positions: Positions, time_ms: int) -> None:
        self.count += 1
        self.positions, self.time_ms = positions, time_ms


class Keeper:
    """Keeps the log from growing. ``keep_s``: how long what is not needed is kept; ``None``: what each topic says."""

    def __init__(
        self,
        bus: Bus,
        machine: Callable[[], CoordinatorMachine],
        commits: Commits,
        *,
        every_s: float,
        keep_s: float | None,
    ) -> None:
        self._bus = bus
        self._machine = machine
        self._commits = commits
        self._every_s = every_s
        self._keep_s = keep_s
        self._retention = Retention()
        self._read: Positions = {}  # how far batches and version-history were read; empty: from their beginning
        self._tombstones: list[tuple[Topic, str]] = []

    def heard(self, beat: TrainerHeartbeat) -> None:
        if beat.needs_from is not None and not self._machine().sync.is_zombie(beat.incarnation):
            self._retention.trained(beat.needs_from)

    def take_tombstones(self) -> list[tuple[Topic, str]]:
        taken, self._tombstones = self._tombstones, []
        return taken

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work for the length of the block; what goes wrong with it unexpectedly is raised at its end."""
        task = asyncio.create_task(self._run(), name="retention")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _run(self) -> None:
        while True:
            try:
                self._read, self._retention = {}, self._retention.anew()
                while True:
                    await self._round()
            except BusError as error:
                log.warning("records that nobody needs any more are not deleted: %s", error)
                await asyncio.sleep(self._every_s)

    async def _round(self) -> None:
        # The commit that is under way may have begun before the last look; the one after it has not.
        enough = self._commits.count + 2
        await asyncio.sleep(self._every_s)
        await _until(lambda: self._commits.count >= enough)
        async with self._bus.reader(BATCHES, VERSION_HISTORY, start=self._read) as reader:
            async for received in reader.replay():
                self._take(received)
            self._read = reader.positions
        cuts = self._retention.look(await self._look())
        batches, versions = self._retention.forgettable()
        self._tombstones = [(BATCHES, key) for key in batches] + [(VERSION_HISTORY, key) for key in versions]
        if cuts:
            await self._bus.delete_before(cuts)
            log.debug("deleted up to %s", cuts)
        await self.weigh()

    def _take(self, received: Received[Any]) -> None:
        if isinstance(received.record, Undecodable):
            return
        key = received.key or ""
        if received.topic is VERSION_HISTORY:
            self._retention.version(key, is_there=not received.is_null)
        else:
            record = received.record if isinstance(received.record, BatchRecord) else None
            self._retention.batch(key, received.offset, record)

    async def weigh(self) -> None:
        weighed = (*_TRIMMED, *_NEVER_TRIMMED)
        sizes, budgets = await self._bus.sizes(weighed), await self._bus.budgets(weighed)
        for topic in weighed:
            needed = {p: 1.0 for name, p in sizes if name == topic.name} | dict.fromkeys(range(topic.partitions), 1.0)
            if topic in _TRIMMED:
                begins, ends = await self._bus.beginning_offsets(topic), await self._bus.end_offsets(topic)
                needed = {
                    partition: needed_share(
                        begins[partition], self._retention.needed.get((topic.name, partition), 0), end
                    )
                    for partition, end in ends.items()
                }
            taken = max(sizes.get((topic.name, partition), 0) * share for partition, share in needed.items())
            budget = budgets.get(topic.name, topic.retention_bytes)
            used = taken / budget if budget > 0 else 0.0
            observations.BUDGET_USED.set(used, {names.MESSAGING_DESTINATION_TEMPLATE: topic.name})

    async def _look(self) -> RetentionSnapshot:
        begins: Cuts = {}
        aged: Cuts = {}
        for topic in _TRIMMED:
            keep_s = (topic.keep_ms or 0) / 1000 if self._keep_s is None else self._keep_s
            young = await self._bus.offsets_from(topic, max(0, self._commits.time_ms - round(keep_s * 1000)))
            aged |= _placed(topic, young)
            begins |= _placed(topic, await self._bus.beginning_offsets(topic))
        ends = await self._bus.end_offsets(EXPERIENCES)
        ledger = self._machine().ledger
        return RetentionSnapshot(
            consumed=self._commits.positions,
            begins=begins,
            ends=ends,
            running=frozenset(ledger.running),
            counting=counting(self._machine()),
            turns=first_turns(self._machine()),
            aged=aged,
        )


def needed_share(begin: int, needed: int, end: int) -> float:
    """How much of what a partition holds is needed, from 0 to 1, as records are of much the same size."""
    return max(0, end - max(begin, needed)) / (end - begin) if end > begin else 0.0


def counting(machine: CoordinatorMachine) -> Iterator[Position]:
    """Where the experiences lie that count in batches that have not ended."""
    for batch in machine.ledger.batches.values():
        for result in batch.results.values():
            yield from (part.position for part in result.entry.parts if part.position is not None)
        for task in batch.open_tasks.values():
            parts = (part for answer in task.answers for part in answer.parts)
            yield from (part.position for part in parts if part.position is not None)


def first_turns(machine: CoordinatorMachine) -> Iterator[Position]:
    """Where the first turns lie that attempts at open tasks have completed."""
    for task in machine.ledger.tasks.values():
        turns = (task.left.turns, *(attempt.turns for attempt in task.running))
        yield from (position for position in turns if position is not None)


def _placed(topic: Topic, offsets: dict[int, int]) -> Cuts:
    return {(topic.name, partition): offset for partition, offset in offsets.items()}


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - commits are many, and nobody else waits for one of them
        await asyncio.sleep(_POLL_S)
