"""A fake log in memory, for clients that are tested without a broker. It stands in for ``trinity_bus.bus.Bus``.

It keeps what clients rely on: order within a partition, encoding and decoding of every record, readers that start at
the end or at positions, awaitable sends. It knows no transactions and no retention. With ``refuse_...`` it fails as a
broker does that is away.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, Self

from aiokafka import ConsumerRecord

from schemas.codec import encode
from schemas.event import Position
from schemas.topic import Topic
from trinity_bus.bus import Received, partition_of
from trinity_bus.bus.read.received import receive
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, SendError


class FakeLog:
    """What every ``FakeBus`` of it shares."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[ConsumerRecord]] = {}
        self.grown = asyncio.Condition()
        self.refuse_sends = 0
        """So many sends fail."""
        self.refuse_reads = 0
        """So many batches fail."""
        self.reads_refused = asyncio.Event()
        """One has failed."""

    async def append(
        self, topic: Topic, key: bytes | None, value: bytes | None, partition: int | None, headers: Any
    ) -> Position:
        if partition is None:
            partition = partition_of(key or b"", topic.partitions)
        records = self.records.setdefault((topic.name, partition), [])
        offset = len(records)
        sizes = len(key or b""), len(value or b"")
        now_ms = round(time.time() * 1000)
        records.append(
            ConsumerRecord(topic.name, partition, offset, now_ms, 0, key, value, None, *sizes, tuple(headers))
        )
        async with self.grown:
            self.grown.notify_all()
        return Position(partition=partition, offset=offset)

    def all(self, topic: Topic) -> list[Received[Any]]:
        """Every record of a topic, partition by partition."""
        return [
            receive(topic, record, topic.records)
            for partition in range(topic.partitions)
            for record in self.records.get((topic.name, partition), [])
        ]


class FakeProducer:
    """Stands in for ``trinity_bus.bus.Producer``."""

    def __init__(self, log: FakeLog) -> None:
        self._log = log

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def send(
        self, topic: Topic, key: str, record: Any, *, encoded: bytes | None = None, **options: Any
    ) -> Awaitable[Position]:
        return await self.send_raw(topic, key, encode(record) if encoded is None else encoded, **options)

    async def send_raw(
        self,
        topic: Topic,
        key: str | bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        **_: Any,
    ) -> Awaitable[Position]:
        sent: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        if self._log.refuse_sends > 0:
            self._log.refuse_sends -= 1
            sent.set_exception(SendError(f"send to {topic.name}: the fake broker is away"))
        else:
            raw = key.encode() if isinstance(key, str) else key
            sent.set_result(await self._log.append(topic, raw, value, partition, headers))
        return sent


class FakeReader:
    """Stands in for ``trinity_bus.bus.Reader``."""

    def __init__(
        self, log: FakeLog, topics: Sequence[Topic], start: Any, expect: Sequence[type] | None, key: Any = None
    ) -> None:
        self._keys = None if key is None else {one.encode() for one in ([key] if isinstance(key, str) else key)}
        self._log = log
        self._topics = topics
        self._start = start
        self._expect = expect
        self._next: dict[tuple[str, int], int] = {}

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        return dict(self._next)

    async def start(self) -> None:
        for topic in self._topics:
            for partition in range(topic.partitions):
                place = (topic.name, partition)
                end = len(self._log.records.get(place, []))
                starts: Mapping[tuple[str, int], int] = {} if isinstance(self._start, str) else self._start
                self._next[place] = end if self._start == "end" else starts.get(place, 0)

    async def stop(self) -> None:
        return

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def batch(self, timeout_s: float) -> list[Received[Any]]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._log.grown:
                await self._log.grown.wait_for(lambda: self._log.refuse_reads > 0 or self._behind())
        if self._log.refuse_reads > 0:
            self._log.refuse_reads -= 1
            self._log.reads_refused.set()
            raise BusError("the fake broker is away")
        return self._take()

    async def keeps_up(self) -> bool:
        return not self._behind()

    async def replay(self, *, written: bool = False) -> AsyncIterator[Received[Any]]:
        # Nothing here is in a transaction.
        del written
        for received in self._take():
            yield received

    def _behind(self) -> bool:
        return any(len(self._log.records.get(place, [])) > offset for place, offset in self._next.items())

    def _take(self) -> list[Received[Any]]:
        taken = []
        for topic in self._topics:
            expect = topic.records if self._expect is None else tuple(self._expect)
            for partition in range(topic.partitions):
                place = (topic.name, partition)
                records = self._log.records.get(place, [])
                taken += [
                    receive(topic, record, expect)
                    for record in records[self._next[place] :]
                    if self._keys is None or record.key in self._keys
                ]
                self._next[place] = len(records)
        return taken


class FakeBus:
    """Stands in for ``trinity_bus.bus.Bus``."""

    def __init__(self, log: FakeLog) -> None:
        self.settings = KafkaSettings(namespace="fake")
        self.fetched = 0
        """Positions that were read."""
        self.refuse_fetches = 0
        """So many fetches fail."""
        self._log = log

    async def ensure_topics(self, topics: Sequence[Topic] = ()) -> None:
        return

    async def beginning_offsets(self, topic: Topic) -> dict[int, int]:
        return dict.fromkeys(range(topic.partitions), 0)

    async def end_offsets(self, topic: Topic) -> dict[int, int]:
        return {p: len(self._log.records.get((topic.name, p), [])) for p in range(topic.partitions)}

    def producer(self) -> FakeProducer:
        return FakeProducer(self._log)

    async def offsets_from(self, topic: Topic, time_ms: int) -> dict[int, int]:
        return dict.fromkeys(range(topic.partitions), 0)

    def reader(
        self,
        *topics: Topic,
        start: Any = "end",
        expect: Sequence[type] | None = None,
        key: Any = None,
        partitions: Sequence[int] | None = None,
        gather_s: float | None = None,  # its records are there at once
    ) -> FakeReader:
        return FakeReader(self._log, topics, start, expect, key)

    async def fetch(
        self, topic: Topic, positions: Sequence[Position], *, expect: Sequence[type] | None = None
    ) -> list[Received[Any]]:
        await asyncio.sleep(0)
        if self.refuse_fetches > 0:
            self.refuse_fetches -= 1
            raise BusError("fetch: the fake broker is away")
        self.fetched += len(positions)
        types = topic.records if expect is None else tuple(expect)
        return [receive(topic, self._log.records[topic.name, p.partition][p.offset], types) for p in positions]
