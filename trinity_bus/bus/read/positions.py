"""Random access to the log: the records at given positions, thousands at a time.

A manifest names experiences by partition and offset, nearly in the order of the log. So positions are sorted, all
partitions are read at once, dense ranges are streamed, and a gap is jumped where reading over it would cost more than a
round trip. Nothing but the wanted records and one fetch is held in memory.

A wanted record that is written, and lies behind a transaction that is open, is waited for, for as long as that takes:
brokers end each within a time of their own. The log says which place it is.

What cannot be read (see :mod:`trinity_bus.bus.read.batches`) is passed over. A wanted position in it is returned as
undecodable, in its place; whoever fetches asks for the rest with :meth:`PositionReader.passed_over`, and reports it.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from aiokafka import ConsumerRecord, TopicPartition

from schemas.event import Position
from schemas.topic import Topic
from trinity_bus import awake
from trinity_bus.bus.client.connection import kafka_errors
from trinity_bus.bus.client.internals import client_of
from trinity_bus.bus.partitioning import partitions_of
from trinity_bus.bus.read.batches import Unreadable
from trinity_bus.bus.read.consumers import LogPlace, log_offsets, make_consumer, stop_consumer
from trinity_bus.bus.read.offsets import Stalls, Standing
from trinity_bus.bus.read.received import SLICE_S, Received, receive
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, RecordGoneError

log = logging.getLogger(__name__)

MAX_PARTITION_FETCH_BYTES = 1 << 20
MAX_FETCH_BYTES = 16 << 20
# gaps of more bytes than about this are jumped over; less is in the same fetch anyway
JUMP_BYTES = MAX_PARTITION_FETCH_BYTES
SETTLE_S = 2.0  # how long a position that is not written yet is waited for
_LOOK_S = 0.5  # how often it is looked whether a transaction that stays open has ended
MAX_PASSED_OVER = 1000  # so many places that cannot be read are remembered, not to be reported again
_STEP_MS = 250  # Longest wait for one batch; then positions are looked at, which also move over what is never returned.


@dataclass(slots=True)
class Cursor:
    """What is still wanted of one partition; ``wanted``: offsets, ascending, each once. Pure."""

    wanted: list[int]
    found: int = 0  # how many of them have been passed
    records: int = 0  # seen so far, wanted or not
    bytes: int = 0  # of those, to know how much a gap of offsets is

    @property
    def done(self) -> bool:
        return self.found == len(self.wanted)

    @property
    def next(self) -> int:
        return self.wanted[self.found]

    def take(self, offset: int, size: int) -> bool:
        # Whether the record is wanted. Offsets come in ascending order.
        self.records += 1
        self.bytes += size
        if self.done or self.next != offset:
            return False
        self.found += 1
        return True

    def take_range(self, first: int, last: int) -> list[int]:
        # The wanted offsets of a stretch that cannot be read.
        taken = []
        while not self.done and self.next <= last:
            if self.next >= first:
                taken.append(self.next)
            self.found += 1
        return taken

    def missed(self, position: int) -> int | None:
        # A wanted offset that reading has passed without seeing it: it holds no record that can be read.
        return self.next if not self.done and self.next < position else None

    def jump(self, position: int) -> int | None:
        # Where to continue from ``position``, if reading on would waste more than a jump.
        if self.done or self.next <= position or not self.records:
            return None
        gap = (self.next - position) * (self.bytes / self.records)
        return self.next if gap > JUMP_BYTES else None


class PositionReader:
    """Fetches records by position over one connection, one request at a time. An async context manager."""

    def __init__(self, settings: KafkaSettings, *, client_id: str) -> None:
        self._settings = settings
        self._client = make_consumer(
            settings,
            client_id,
            partition_bytes=MAX_PARTITION_FETCH_BYTES,
            fetch_bytes=MAX_FETCH_BYTES,
            wait_ms=_STEP_MS,
            least_bytes=1,
        )
        self._one_at_a_time = asyncio.Lock()
        self._met: dict[str, Received[Any]] = {}  # what could not be read and was not wanted, by its place
        self._told = 0  # so many of them have been asked for

    async def __aenter__(self) -> Self:
        try:
            with kafka_errors("connect"):
                await self._client.start()
        except BaseException:
            await stop_consumer(self._client)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_consumer(self._client)

    async def offsets(self, topic: Topic, which: LogPlace) -> dict[int, int]:
        with kafka_errors(f"find the {which} of {topic.name}"):
            found = await log_offsets(self._client, self._settings, which, await self._all(topic))
            return {p.partition: offset for p, offset in found.items()}

    async def offsets_from(self, topic: Topic, time_ms: int) -> dict[int, int]:
        # ``time_ms``: since the Unix epoch, by the brokers' clocks.
        ends = await self.offsets(topic, "end")
        with kafka_errors(f"find the age of {topic.name}"):
            found = await self._client.offsets_for_times(dict.fromkeys(await self._all(topic), time_ms))
        ages = {place.partition: place_found for place, place_found in found.items()}
        return {p: end if ages.get(p) is None else ages[p].offset for p, end in ends.items()}

    async def fetch(
        self, topic: Topic, positions: Sequence[Position], *, expect: Sequence[type] | None = None
    ) -> list[Received[Any]]:
        """Return the records at these positions, in their order. Raises RecordGoneError or BusError."""
        if not positions:
            return []
        wanted: dict[int, set[int]] = {}
        for position in positions:
            wanted.setdefault(position.partition, set()).add(position.offset)
        types = topic.records if expect is None else tuple(expect)
        # Others need not wait for a transaction with this one.
        await self._check(topic, wanted)
        async with self._one_at_a_time:
            found = await self._read(topic, {p: Cursor(sorted(offsets)) for p, offsets in wanted.items()}, types)
        return [found[position.partition, position.offset] for position in positions]

    def passed_over(self) -> list[Received[Any]]:
        """Return what could not be read and was not asked for, since the last call; each place once."""
        new = list(self._met.values())[self._told :]
        self._told = len(self._met)
        return new

    async def _check(self, topic: Topic, wanted: dict[int, set[int]]) -> None:
        # Refuse positions outside the log; wait a little for the end, and for transactions until they end.
        begin = await self.offsets(topic, "beginning")
        for partition in wanted:
            if partition not in begin:
                raise RecordGoneError(f"{topic.name} has {len(begin)} partitions, there is no {partition}")
        for partition, offsets in wanted.items():
            if min(offsets) < begin[partition]:
                raise RecordGoneError(
                    f"{topic.name}/{partition}@{min(offsets)} is gone: retention has deleted everything before "
                    f"offset {begin[partition]}; give the topic a longer retention"
                )
        until, stalls = awake.now() + SETTLE_S, Stalls()
        while True:
            end = await self.offsets(topic, "end")
            early = {p: max(offsets) for p, offsets in wanted.items() if max(offsets) >= end[p]}
            if not early:
                return
            # Asked for behind the other: of what has been committed between the two, the next look tells.
            written = await self.offsets(topic, "written end")
            settled = awake.now() > until
            if settled and (absent := [p for p, offset in early.items() if offset >= written[p]]):
                partition = absent[0]
                raise RecordGoneError(
                    f"{topic.name}/{partition}@{early[partition]} does not exist: records end at {written[partition]}"
                )
            stalls.look(awake.now(), (Standing(topic.name, p, end[p], end[p], written[p]) for p in early), ())
            for line in stalls.news():
                log.error("%s", line)
            await asyncio.sleep(_LOOK_S if settled else 0.05)

    async def _read(
        self, topic: Topic, cursors: dict[int, Cursor], types: tuple[type, ...]
    ) -> dict[tuple[int, int], Received[Any]]:
        name = topic.full_name(self._settings.namespace)
        found: dict[tuple[int, int], Received[Any]] = {}
        left = {TopicPartition(name, partition): cursor for partition, cursor in cursors.items()}
        self._client.assign(list(left))
        for position, cursor in left.items():
            self._client.seek(position, cursor.next)
        progress = awake.now()
        try:
            while left:
                with kafka_errors(f"fetch from {name}"):
                    batches = await self._client.getmany(*left, timeout_ms=_STEP_MS)
                    if not batches:
                        client_of(self._client).check_credentials()
                if batches:
                    progress = awake.now()
                elif awake.now() - progress > self._settings.outage_s:
                    raise BusError(f"fetch from {name}: nothing came for {self._settings.outage_s:g} s")
                for position, records in batches.items():
                    await self._take(topic, left[position], records, types, found)
                for position, cursor in list(left.items()):
                    if await self._advance(topic, position, cursor):
                        del left[position]
        finally:
            # Else the client would go on fetching in the background. (Unsubscribing it can end its fetcher for good.)
            self._client.pause(*left)
        return found

    async def _advance(self, topic: Topic, position: TopicPartition, cursor: Cursor) -> bool:
        # Jump, or stop reading a partition of which nothing more is wanted. True when it is done.
        if cursor.done:
            self._client.pause(position)
            return True
        at = await self._client.position(position)
        missed = cursor.missed(at)
        if missed is not None:
            raise RecordGoneError(
                f"{topic.name}/{position.partition}@{missed} holds no record: it was aborted, compacted away, or is "
                "a transaction marker"
            )
        target = cursor.jump(at)
        if target is not None:
            self._client.seek(position, target)
        return False

    async def _take(
        self,
        topic: Topic,
        cursor: Cursor,
        records: list[ConsumerRecord | Unreadable],
        types: tuple[type, ...],
        found: dict[tuple[int, int], Received[Any]],
    ) -> None:
        # Decode what is wanted of a batch, letting the event loop turn every few milliseconds.
        until = time.perf_counter() + SLICE_S
        for record in records:
            if isinstance(record, Unreadable):
                received = receive(topic, record, types)
                wanted = cursor.take_range(record.offset, record.last_offset)
                found |= {(record.partition, offset): received for offset in wanted}
                if not wanted and len(self._met) < MAX_PASSED_OVER:
                    self._met.setdefault(received.place, received)
            elif cursor.take(record.offset, len(record.value or b"")):
                found[record.partition, record.offset] = receive(topic, record, types)
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_S

    async def _all(self, topic: Topic) -> list[TopicPartition]:
        name = topic.full_name(self._settings.namespace)
        if topic.grows:
            # It may have grown a moment ago, and what is asked for may lie where it did.
            await client_of(self._client).learn({name})
        known = self._client.partitions_for_topic(name)
        return [TopicPartition(name, partition) for partition in partitions_of(topic, known)]
