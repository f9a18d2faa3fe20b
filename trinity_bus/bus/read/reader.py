"""Reading the log: by assignment, committed records only, without ever losing a record to a cancelled wait.

There are no consumer groups and so no rebalances: a reader names its partitions, and its owner keeps its positions (in
a transaction, in a checkpoint, or nowhere). One fetch is always left pending and only waited for with a limit;
cancelling :meth:`Reader.batch` at any point loses nothing, the next call goes on from there.
What cannot be read (see :mod:`trinity_bus.bus.read.batches`) is passed over, and returned as undecodable in its place.

The client asks the broker for more only when all that it has was taken from it. A reader that reads ``ahead`` takes it
as it comes, so that what arrives while its owner is busy is there when it asks again, and not still at the broker::

    getmany() pending --records--> queued, undecoded --batch()--> decoded, to the owner
         ^                             |
         '---until max_records, or fetch_bytes---'

A fetch costs broker and client about as much as writing a record, however little it brings, and the more the more
partitions it names. So one for whom nobody waits says how long records may *gather* at the broker, and one that reads
ahead takes what has come once in ``AHEAD_EVERY_S``: the client's next fetch begins then. What comes after a pause is
taken at once.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Literal, Self, TypedDict, Unpack

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from opentelemetry.metrics import get_meter

from schemas.topic import Topic
from trinity_bus import awake
from trinity_bus.bus.client.connection import METADATA_S, kafka_errors
from trinity_bus.bus.client.internals import client_of
from trinity_bus.bus.partitioning import partitions_of
from trinity_bus.bus.read.batches import Unreadable
from trinity_bus.bus.read.consumers import LogPlace, log_offsets, make_consumer, stop_consumer
from trinity_bus.bus.read.offsets import Stalls, Standing
from trinity_bus.bus.read.received import Received, receive_all
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError
from trinity_bus.telemetry import metrics

log = logging.getLogger(__name__)

type Start = Literal["beginning", "end"] | Mapping[tuple[str, int], int]

MAX_RECORDS = 500  # so that its owner gets to handle them while more arrive
MAX_PARTITION_FETCH_BYTES = 4 << 20
MAX_FETCH_BYTES = 32 << 20  # bounds what a reader holds in memory: one fetch
FETCH_WAIT_MS = 100  # a partition with no room in the fetch under way waits at most this long for the next
# with one partition nobody waits for another's fetch, and each fetch costs the broker and the client
LONE_FETCH_WAIT_MS = 500
# so many are sent at once, also to one that lets records gather: more would not make a fetch cheaper
GATHERED_BYTES = 1 << 20
AHEAD_EVERY_S = 0.004
_WAIT_S = 60.0
_REPLAY_WAIT_S = 0.05
_SILENT_MS = 10_000  # a partition that no broker has answered for in this time may have grown unseen

type _Raw = ConsumerRecord | Unreadable


class ReaderOptions(TypedDict, total=False):
    """How a reader reads."""

    # which partitions of each topic; all of them where absent
    partitions: Sequence[int] | None
    # ``{(topic name, partition): offset}``: a partition that is missing starts at its beginning; absent: the end
    start: Start
    # the record types to decode; those of each topic where absent
    expect: Sequence[type] | None
    # most records that one batch returns; absent: ``MAX_RECORDS``
    max_records: int
    # Most bytes that the broker sends at once, and so about what the reader holds in memory; a larger record comes
    # alone. Absent: ``MAX_FETCH_BYTES``.
    fetch_bytes: int
    # Take records from the broker while the owner is busy, ``max_records`` of them and what comes with the last. For
    # one that must not find old records when it asks again.
    ahead: bool
    # How long records may gather at the broker before it sends them, unless they are many: for one whom nobody waits
    # for. Absent: each is sent as it comes.
    gather_s: float | None
    # pass over all records of other keys, without decoding them
    key: str | Collection[str] | None


class Reader:
    """Reads topics from given positions on. Made by :meth:`trinity_bus.bus.Bus.reader`. An async context manager."""

    def __init__(
        self, settings: KafkaSettings, *topics: Topic, client_id: str, **options: Unpack[ReaderOptions]
    ) -> None:
        partitions, expect, key = options.get("partitions"), options.get("expect"), options.get("key")
        self._settings = settings
        self._client_id = client_id
        self._start: Start = options.get("start", "end")
        self._expect = None if expect is None else tuple(expect)
        self._max_records = options.get("max_records", MAX_RECORDS)
        self._fetch_bytes = options.get("fetch_bytes", MAX_FETCH_BYTES)
        self._ahead = options.get("ahead", False)
        self._gather_s = options.get("gather_s")
        self._keys = None if key is None else {one.encode() for one in ([key] if isinstance(key, str) else key)}
        self._topics = {topic.full_name(settings.namespace): topic for topic in topics}
        self._assigned = [
            TopicPartition(name, partition)
            for name, topic in self._topics.items()
            for partition in (range(topic.partitions) if partitions is None else partitions)
        ]
        # of which all partitions are read, also those that are added later
        self._growing = [name for name, topic in self._topics.items() if topic.grows and partitions is None]
        self._running: AIOKafkaConsumer | None = None
        self._pending: asyncio.Task[dict[TopicPartition, list[_Raw]]] | None = None
        self._raw: deque[tuple[Topic, _Raw]] = deque()
        self._ready: list[Received[Any]] = []
        self._taken_at = float("-inf")
        self._next: dict[tuple[str, int], int] = {}
        # the offset after the last record of another key, of each partition, since ``batch`` returned
        self._passed: dict[tuple[str, int], int] = {}
        self._stalls = Stalls()
        self._has_returned = False  # whether ``batch`` has returned anything since ``keeps_up`` was asked

    async def start(self) -> None:
        """Connect and fix the start positions: a record written after this returns is read, wherever the start is."""
        wait_ms = LONE_FETCH_WAIT_MS if len(self._assigned) == 1 else FETCH_WAIT_MS
        client = make_consumer(
            self._settings,
            self._client_id,
            partition_bytes=min(MAX_PARTITION_FETCH_BYTES, self._fetch_bytes),
            fetch_bytes=self._fetch_bytes,
            wait_ms=wait_ms if self._gather_s is None else round(self._gather_s * 1000),
            least_bytes=1 if self._gather_s is None else min(GATHERED_BYTES, self._fetch_bytes),
        )
        try:
            with kafka_errors(f"start reader of {', '.join(self._topics)}"):
                await client.start()
                if self._growing:
                    await client_of(client).learn(set(self._growing))
                self._assigned += self._added(client)
                client.assign(self._assigned)
                for position, offset in (await self._start_offsets(client)).items():
                    client.seek(position, offset)
                    self._next[self._place(position)] = offset
        except BaseException:
            await stop_consumer(client)
            raise
        self._running = client
        _LAG.watch(self)

    async def stop(self) -> None:
        """Disconnect. Records that were fetched and not returned are simply not read."""
        client, self._running = self._running, None
        if client is None:
            return
        try:
            await stop_consumer(client)
        finally:
            if self._pending is not None:
                self._pending.cancel()
                await asyncio.wait([self._pending])
                self._pending = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def batch(self, timeout_s: float) -> list[Received[Any]]:
        """Return the next records, in the order of each partition; empty if none came within the limit."""
        if not self._raw and not self._ready:
            await self._fetch(timeout_s)
        await receive_all(self._raw, self._ready, self._expected, self._max_records, self._wants)
        if self._ahead and self._pending is None and self._running is not None:
            self._ask(self._running)
        records, self._ready = self._ready, []
        self._has_returned = self._has_returned or bool(records or self._passed)
        counts: dict[str, int] = {}
        for record in records:
            self._next[record.topic.name, record.partition] = record.last_offset + 1
            counts[record.topic.name] = counts.get(record.topic.name, 0) + 1
        for place, offset in self._passed.items():
            self._next[place] = max(self._next[place], offset)
        self._passed.clear()
        for name, count in counts.items():
            metrics.CONSUMED_MESSAGES.add(count, metrics.messaging("poll", name))
        return records

    def arrival(self) -> asyncio.Future[Any] | None:
        """Return what is done as soon as :meth:`batch` may return something; None where it does at once.

        It is not to be cancelled, and what it raises is for :meth:`batch` to tell.
        """
        if self._raw or self._ready:
            return None
        return self._pending or self._ask(self._connected())

    async def replay(self, *, written: bool = False) -> AsyncIterator[Received[Any]]:
        """Every record from the present positions to the end of the log as it is at the call.

        ``written``: whether that is the end of all that is written, and open transactions are waited for. Kafka answers
        a commit before the leader of each partition knows of it, so who has read one record of a transaction may not
        find another yet. What nobody ends is aborted when its time is up, ``outage_s`` at most.
        """
        ends = await self._ends("written end" if written else "end")
        while not await self._has_returned_all_before(ends):
            for record in await self.batch(_REPLAY_WAIT_S):
                yield record

    async def is_at_end(self) -> bool:
        """Whether everything that is committed at the call has been returned already."""
        return await self._has_returned_all_before(await self._ends())

    async def keeps_up(self) -> bool:
        """Whether something was returned since the last call, or brokers say that there is nothing to return.

        For whoever watches over a service: asks nobody, and does not raise. What is kept from it (see
        :mod:`trinity_bus.bus.read.offsets`) is not kept up with, and told in the log.
        """
        client, has_returned, self._has_returned = self._running, self._has_returned, False
        if client is None or await self._is_stalled(client):
            return False
        if has_returned:
            return True
        if self._raw or self._ready:
            return False
        silent_before = round(time.time() * 1000) - _SILENT_MS
        for position in self._assigned:
            end, answered = client.last_stable_offset(position), client.last_poll_timestamp(position)
            if end is None or (answered or 0) < silent_before or await client.position(position) < end:
                return False
        return True

    async def _is_stalled(self, client: AIOKafkaConsumer) -> bool:
        standings = [
            Standing(
                self._topics[position.topic].name,
                position.partition,
                await client.position(position),
                client.last_stable_offset(position),
                client.highwater(position),
            )
            for position in self._assigned
        ]
        found = [
            (topic.name, len(client.partitions_for_topic(name) or ()), topic.partitions)
            for name, topic in self._topics.items()
            if not topic.grows
        ]
        stalled = bool(self._stalls.look(awake.now(), standings, found))
        for line in self._stalls.news():
            log.error("%s", line)
        return stalled

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """``(topic name, partition)`` to the offset after the last record that was returned."""
        return dict(self._next)

    def lag(self) -> dict[str, int]:
        """Return records of each topic that are in the log and not yet returned, as far as the last fetch has told."""
        lags = dict.fromkeys((topic.name for topic in self._topics.values()), 0)
        client = self._running
        if client is None:
            return lags
        for position in self._assigned:
            name, partition = self._place(position)
            end = client.highwater(position)
            if end is not None and (name, partition) in self._next:
                lags[name] += max(0, end - self._next[name, partition])
        return lags

    async def _ends(self, which: LogPlace = "end") -> dict[TopicPartition, int]:
        with kafka_errors("find the end of the log"):
            return await log_offsets(self._connected(), self._settings, which, self._assigned)

    async def _has_returned_all_before(self, ends: Mapping[TopicPartition, int]) -> bool:
        if self._raw or self._ready or (self._pending is not None and self._pending.done()):
            return False
        # The client's positions also pass over what is never returned: transaction markers, aborted records.
        return all([await self._connected().position(position) >= end for position, end in ends.items()])

    async def _fetch(self, timeout_s: float) -> None:
        pending = self._pending or self._ask(self._connected())
        if timeout_s <= 0:
            await asyncio.sleep(0)
        if not pending.done():
            await awake.wait([pending], timeout_s)
        self._take_pending()

    def _ask(self, client: AIOKafkaConsumer) -> asyncio.Task[dict[TopicPartition, list[_Raw]]]:
        # The limit is ours, not the client's: a pending fetch is kept over calls and never cancelled.
        pending = asyncio.create_task(self._get(client))
        self._pending = pending
        if self._ahead:
            pending.add_done_callback(self._go_on)
        return pending

    async def _get(self, client: AIOKafkaConsumer) -> dict[TopicPartition, list[_Raw]]:
        # Empty now and then, to see what partitions there are.
        if added := self._added(client):
            begins = await log_offsets(client, self._settings, "beginning", added)
            # Nothing of what the client has given out is pending here, so its positions are where to go on.
            places = {position: await client.position(position) for position in self._assigned} | begins
            self._assigned += added
            client.assign(self._assigned)
            for position, offset in places.items():
                client.seek(position, offset)
            self._next |= {self._place(position): offset for position, offset in begins.items()}
            log.info("%s has more partitions: they are read, too", ", ".join({place.topic for place in added}))
        wait_s = METADATA_S if self._growing else _WAIT_S
        if self._ahead and (pause_s := self._taken_at + AHEAD_EVERY_S - awake.now()) > 0:
            await asyncio.sleep(pause_s)
        found: dict[TopicPartition, list[_Raw]] = await client.getmany(
            timeout_ms=round(wait_s * 1000), max_records=self._max_records
        )
        self._taken_at = awake.now()
        if not found:
            client_of(client).check_credentials()
        return found

    def _added(self, client: AIOKafkaConsumer) -> list[TopicPartition]:
        # The partitions that are not read yet, as far as the client knows.
        return [
            place
            for name in self._growing
            for partition in partitions_of(self._topics[name], client.partitions_for_topic(name))
            if (place := TopicPartition(name, partition)) not in self._assigned
        ]

    def _go_on(self, pending: asyncio.Task[dict[TopicPartition, list[_Raw]]]) -> None:
        # Queue what has come and ask for more, unless there is enough, or something is wrong: ``batch`` says what.
        if pending is not self._pending or pending.cancelled() or pending.exception() is not None:
            return
        self._pending = None
        self._queue(pending.result())
        if self._running is not None and self._has_room():
            self._ask(self._running)

    def _take_pending(self) -> None:
        # Queue what the pending fetch has brought, if it is done.
        if self._pending is None or not self._pending.done():
            return
        task, self._pending = self._pending, None
        with kafka_errors(self._doing):
            self._queue(task.result())

    def _has_room(self) -> bool:
        # Whether more may be queued; a few records may be large.
        return (
            len(self._raw) < self._max_records
            and sum(len(record.value or b"") for _, record in self._raw if isinstance(record, ConsumerRecord))
            < self._fetch_bytes
        )

    def _queue(self, found: Mapping[TopicPartition, list[_Raw]]) -> None:
        for position, records in found.items():
            topic = self._topics[position.topic]
            self._raw.extend((topic, record) for record in records)

    async def _start_offsets(self, client: AIOKafkaConsumer) -> dict[TopicPartition, int]:
        found = await log_offsets(
            client, self._settings, "end" if self._start == "end" else "beginning", self._assigned
        )
        if not isinstance(self._start, str):
            found |= {p: self._start[self._place(p)] for p in self._assigned if self._place(p) in self._start}
        return found

    @property
    def _doing(self) -> str:
        return f"read {', '.join(self._topics)}"

    def _place(self, position: TopicPartition) -> tuple[str, int]:
        return self._topics[position.topic].name, position.partition

    def _wants(self, topic: Topic, record: _Raw) -> bool:
        # Whether a record is to be returned; notes how far the others go.
        if self._keys is None or isinstance(record, Unreadable) or record.key in self._keys:
            return True
        self._passed[topic.name, record.partition] = record.offset + 1
        return False

    def _expected(self, topic: Topic) -> tuple[type, ...]:
        return topic.records if self._expect is None else self._expect

    def _connected(self) -> AIOKafkaConsumer:
        if self._running is None:
            raise BusError(f"the reader of {', '.join(self._topics)} is not started, or is stopped")
        return self._running


# Readers belong to no consumer group, so no broker knows their lag; each tells its own.
_LAG = metrics.Totals(Reader.lag, metrics.of_topic)
get_meter("trinity_bus").create_observable_gauge(
    "trinity.consumer.lag",
    [_LAG.observe],
    unit="{message}",
    description="Records in the log and not yet read, by topic.",
)
