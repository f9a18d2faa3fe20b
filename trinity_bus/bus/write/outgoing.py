"""The records of an open transaction, collected into one batch for each partition and handed to the client together.

::

    add() --> COLLECTED, in the batch of its partition --hand_over()--> SENT --durable--> its position is known
                  |                                                       '--refused----> SendError
                  '--the transaction ends without hand_over(), because its body has raised--> SendError

Handed over together, all partitions of a transaction are added to it with one request and written with one, where
records that come one by one cost a request for each partition that is new; ``announce`` makes that first request while
something else is waited for. And a record costs a few microseconds,
where one that is sent by itself costs two futures and a callback.

A batch that is full is handed over, with all others, before the next record is taken: that bounds the memory.
"""

import asyncio
from collections.abc import Generator
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition

from schemas.event import Position
from schemas.topic import Topic
from trinity_bus.bus.client.connection import kafka_errors
from trinity_bus.bus.client.internals import BatchBuilder, add_to_transaction
from trinity_bus.bus.topics.metadata import partitions_known
from trinity_bus.bus.write.delivery import Delivery
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import SendError

type Headers = list[tuple[str, bytes]]


class Outgoing:
    def __init__(self, client: AIOKafkaProducer, settings: KafkaSettings) -> None:
        self._client = client
        self._settings = settings
        self._collected: dict[tuple[str, int], OutgoingBatch] = {}
        self._handing_over = asyncio.Lock()
        self.sent: list[asyncio.Future[Position]] = []  # the first position of each batch that was handed over

    async def add(
        self, topic: Topic, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Placed":
        """Take a record. Whoever awaits the returned position inside the transaction has everything handed over."""
        place = topic.name, partition
        while True:
            batch = self._collected.get(place)
            if batch is None:
                batch = self._collected[place] = OutgoingBatch(topic, partition, self._client.create_batch(), self)
            # The first record of a batch is always taken.
            if batch.builder.append(timestamp=None, key=key, value=value, headers=headers) is not None:
                return Placed(batch, batch.builder.record_count() - 1)
            await self.hand_over()

    def announce(self, topic: Topic) -> None:
        """Have the partitions of what was collected, and that of this topic, added to the transaction already."""
        for name, partition in {*self._collected, (topic.name, 0)}:
            add_to_transaction(self._client, TopicPartition(f"{self._settings.namespace}.{name}", partition))

    async def hand_over(self) -> None:
        """Give everything that was collected to the client."""
        async with self._handing_over:
            collected, self._collected = self._collected, {}
            for batch in collected.values():
                self.sent.append(await batch.send(self._client, self._settings))

    def forget(self) -> None:
        """Note that the transaction is over: what was not handed over never will be."""
        for batch in self._collected.values():
            batch.forgotten = True
        self._collected.clear()


class OutgoingBatch:
    def __init__(self, topic: Topic, partition: int, builder: BatchBuilder, outgoing: Outgoing) -> None:
        self.topic = topic
        self.builder = builder
        self.forgotten = False
        self._partition = partition
        self._outgoing = outgoing
        self._first: asyncio.Future[Position] | None = None

    async def send(self, client: AIOKafkaProducer, settings: KafkaSettings) -> asyncio.Future[Position]:
        # Returns the future position of its first record.
        name = self.topic.full_name(settings.namespace)
        await partitions_known(client, name, settings, self._partition)
        delivery = Delivery(self.topic, f"send to {name}", None)
        self._first = delivery.position
        self.builder.close()
        with kafka_errors(f"send to {name}"):
            sending = await client.send_batch(self.builder, name, partition=self._partition)
        delivery.accepted(sending, self.builder.record_count())
        return delivery.position

    async def first(self) -> Position:
        # Raises SendError where the record never will be durable.
        if self._first is None and not self.forgotten:
            await self._outgoing.hand_over()
        if self._first is None:
            raise SendError(f"send to {self.topic.name}: the transaction was aborted before it was sent")
        return await asyncio.shield(self._first)


class Placed:
    """Awaitable for the position of a record in a batch."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: OutgoingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, Position]:
        return self._position().__await__()

    async def _position(self) -> Position:
        first = await self._batch.first()
        return Position(partition=first.partition, offset=first.offset + self._index)
