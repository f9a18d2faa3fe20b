"""One process's access to the log."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self, Unpack

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from schemas.event import Position
from schemas.topic import Topic
from schemas.topics import TOPICS
from trinity_bus.bus import partitioning
from trinity_bus.bus import topics as topic_admin
from trinity_bus.bus.administration.cluster import ClusterObserver
from trinity_bus.bus.administration.requests import LogIdentity, identity_of
from trinity_bus.bus.client.connection import administrator, kafka_errors, throttle_client_logs, wait_reachable
from trinity_bus.bus.read.offsets import committed
from trinity_bus.bus.read.positions import PositionReader
from trinity_bus.bus.read.reader import Reader, ReaderOptions
from trinity_bus.bus.read.received import Received
from trinity_bus.bus.write.producer import Producer
from trinity_bus.config import KafkaSettings


class Bus:
    """Connection to Kafka: makes producers and readers, creates topics, reads by position. An async context manager.

    Producers and readers are context managers of their own, to be closed before the bus.

    Args:
        settings: Where the log is.
        client_id: The name of this process in the brokers' logs and metrics, such as ``"explorer-0"``.
        patient: Whether to try for ``outage_s`` to connect, as for a service that is started beside its broker.
    """

    def __init__(self, settings: KafkaSettings, *, client_id: str, patient: bool = False) -> None:
        self.settings = settings
        self.client_id = client_id
        self._start_s = settings.outage_s if patient else 0.0
        self._stack = AsyncExitStack()
        self._admin: AIOKafkaAdminClient | None = None
        self._positions: PositionReader | None = None
        self._observer: ClusterObserver | None = None
        self._connecting = asyncio.Lock()

    async def start(self) -> None:
        """Check that a broker can be reached and lets this process in."""
        throttle_client_logs()
        await wait_reachable(self.settings, self.client_id, self._start_s)

    async def stop(self) -> None:
        self._admin = self._positions = self._observer = None
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def ensure_topics(self, topics: Sequence[Topic] = TOPICS) -> None:
        """Create the topics that are absent, with what their records need, and check the others: TopicMismatchError."""
        created = await topic_admin.ensure(await self._administrator(), self.settings, topics)
        # A leader that is announced may still be making its log; once offsets can be asked for, records can be sent.
        reader = await self._position_reader()
        for topic in created:
            await reader.offsets(topic, "end")

    async def present(self, topics: Sequence[Topic] = TOPICS) -> list[Topic]:
        """Return which of these topics there are; creates nothing."""
        return await topic_admin.present(await self._administrator(), self.settings, topics)

    async def grow(self, topic: Topic, partitions: int) -> int:
        """Give a topic so many partitions, while it is in use. Return how many it had."""
        return await partitioning.grow(await self._administrator(), self.settings, topic, partitions)

    async def cluster_observer(self) -> ClusterObserver:
        if self._observer is None:
            self._observer = ClusterObserver(await self._administrator(), self.settings, TOPICS)
        return self._observer

    def producer(self, *, transactional_id: str | None = None) -> Producer:
        """Return a producer: idempotent, acknowledged by all replicas.

        Of all producers that ever started with a ``transactional_id`` (prefixed with the namespace), only the last can
        write.
        """
        full_id = None if transactional_id is None else f"{self.settings.namespace}.{transactional_id}"
        return Producer(self.settings, client_id=self.client_id, transactional_id=full_id)

    def reader(self, *topics: Topic, **options: Unpack[ReaderOptions]) -> Reader:
        """Return a reader of committed records, without a consumer group."""
        return Reader(self.settings, *topics, client_id=self.client_id, **options)

    async def identity(self, topic: Topic) -> LogIdentity:
        name = topic.full_name(self.settings.namespace)
        admin = await self._administrator()
        with kafka_errors(f"describe {name}"):
            return await identity_of(admin, name)

    async def end_offsets(self, topic: Topic) -> dict[int, int]:
        """Partition to the offset that the next committed record will have at least."""
        return await (await self._position_reader()).offsets(topic, "end")

    async def written_ends(self, topic: Topic) -> dict[int, int]:
        """Partition to the offset of the next record; transactions that are open end before it."""
        return await (await self._position_reader()).offsets(topic, "written end")

    async def beginning_offsets(self, topic: Topic) -> dict[int, int]:
        """Partition to the first offset that retention has kept."""
        return await (await self._position_reader()).offsets(topic, "beginning")

    async def offsets_from(self, topic: Topic, time_ms: int) -> dict[int, int]:
        """Partition to the offset from which on all records were written at this time (epoch milliseconds) or later."""
        return await (await self._position_reader()).offsets_from(topic, time_ms)

    async def delete_before(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Delete records before these offsets, each the first that is kept, by ``(topic name, partition)``."""
        if not offsets:
            return
        admin = await self._administrator()
        named = {
            TopicPartition(f"{self.settings.namespace}.{topic}", partition): RecordsToDelete(before_offset=offset)
            for (topic, partition), offset in offsets.items()
        }
        with kafka_errors("delete records that nobody needs any more"):
            await admin.delete_records(named, timeout_ms=round(self.settings.request_timeout_s * 1000))

    async def sizes(self, topics: Sequence[Topic]) -> dict[tuple[str, int], int]:
        """``(topic name, partition)`` to the bytes that it takes on a disk; what this user may not know is absent."""
        found = await (await self.cluster_observer()).partition_sizes()
        wanted = {topic.name for topic in topics}
        return {place: size for place, size in found.items() if place[0] in wanted}

    async def budgets(self, topics: Sequence[Topic]) -> dict[str, int]:
        """Topic name to the bytes that a partition may take before Kafka deletes the oldest; -1 is no limit."""
        return await topic_admin.budgets(await self._administrator(), self.settings, topics)

    async def committed_offsets(self, group: str, topics: Sequence[Topic]) -> dict[tuple[str, int], int]:
        """``(topic name, partition)`` to the offset to read next, as last committed; partitions without one are absent.

        A successor in a transactional role starts its producer first: that settles what its predecessor left open.
        """
        names = {topic.full_name(self.settings.namespace): topic for topic in topics}
        wanted = [TopicPartition(name, number) for name, topic in names.items() for number in range(topic.partitions)]
        admin = await self._administrator()
        found = await committed(admin, group, wanted, self.settings.outage_s)
        return {(names[position.topic].name, position.partition): offset for position, offset in found.items()}

    async def fetch(
        self, topic: Topic, positions: Sequence[Position], *, expect: Sequence[type] | None = None
    ) -> list[Received[Any]]:
        """Return the records at these positions, in their order; undecodable where they cannot be read.

        Meant for thousands of positions at a time. Besides the result, it holds one fetch in memory. What lies behind
        a transaction that is open is waited for until that ends, however long it takes. RecordGoneError: a position has
        no committed record: deleted by retention, aborted, or never written.
        """
        return await (await self._position_reader()).fetch(topic, positions, expect=expect)

    def passed_over(self) -> list[Received[Any]]:
        """Return, once each, what :meth:`fetch` has met between the positions and could not read, for dead letters."""
        return [] if self._positions is None else self._positions.passed_over()

    async def _administrator(self) -> AIOKafkaAdminClient:
        async with self._connecting:
            if self._admin is None:
                connecting = administrator(self.settings, self.client_id)
                self._admin = await self._stack.enter_async_context(connecting)
            return self._admin

    async def _position_reader(self) -> PositionReader:
        async with self._connecting:
            if self._positions is None:
                reader = PositionReader(self.settings, client_id=self.client_id)
                self._positions = await self._stack.enter_async_context(reader)
            return self._positions
