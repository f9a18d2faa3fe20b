"""One send, from the hand-over to the client until its record is durable or is known never to be.

Spans of sends are made by hand, because they must cover all of that. Only records that begin or end a unit of work get
one: tasks and experiences. Heartbeats, batches and changelogs would bury the trace.

The records of an open transaction are collected into one batch for each partition, and handed over together.

::

    add() --> COLLECTED, in the batch of its partition --hand_over()--> SENT --durable--> its position is known
                  |                                                       '--refused----> SendError
                  '--the transaction ends without hand_over(), because its body has raised--> SendError

So all partitions of a transaction are added to it with one request and written with one, where
records that come one by one cost a request for each partition that is new; ``announce`` makes that first request while
something else is waited for. And a record costs a few microseconds, where one that is sent by itself costs two futures
and a callback.

A batch that is full is handed over, with all others, before the next record is taken: that bounds the memory.
"""

import asyncio
import time
from collections.abc import Generator
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import RecordMetadata
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from schemas.event import Position
from schemas.experience import ExperienceGroup
from schemas.record import Record
from schemas.task import Task
from schemas.topic import Topic
from schemas.topics import EXPERIENCES, TASKS
from trinity_bus.bus.client.connection import kafka_errors, translated
from trinity_bus.bus.client.internals import BatchBuilder, add_to_transaction
from trinity_bus.bus.write.producer_client import partitions_known
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, ProducerFencedError, RecordTooLargeError, SendError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import metrics

RECORD_OVERHEAD_BYTES = 512  # more than a batch header and a record header take on the wire


class Delivery:
    """Ends the span, keeps the metrics and resolves ``position`` when the client knows the outcome."""

    def __init__(self, topic: Topic, doing: str, span: Span | None) -> None:
        self.position: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._topic = topic.name
        self._doing = doing
        self._span = span
        self._records = 1
        self._started = time.perf_counter()

    def accepted(self, sending: asyncio.Future[RecordMetadata], records: int = 1) -> None:
        # ``records``: how many it stands for, with the first's position.
        self._records = records
        sending.add_done_callback(self._settle)

    def refused(self, error: BaseException) -> None:
        self._tell(None, error)

    def _settle(self, sending: asyncio.Future[RecordMetadata]) -> None:
        position, error = _outcome(sending, self._doing)
        self._tell(position, error)
        if self.position.done():
            return
        if position is not None:
            self.position.set_result(position)
        elif error is not None:
            self.position.set_exception(error)

    def _tell(self, position: Position | None, error: BaseException | None) -> None:
        if self._span is not None:
            end_send_span(self._span, position, error)
        attributes = metrics.messaging("send", self._topic, None if error is None else type(error).__name__)
        metrics.SENT_MESSAGES.add(self._records, attributes)
        metrics.SEND_DURATION.record(time.perf_counter() - self._started, attributes)


def check(
    topic: Topic,
    key: bytes | None,
    value: bytes | None,
    partition: int | None,
    headers: list[tuple[str, bytes]],
    *,
    max_message_bytes: int,
) -> None:
    """Refuse what the broker would refuse, before anything is queued. Raises RecordTooLargeError or SendError."""
    if key is None and value is None:
        raise SendError(f"send to {topic.name}: a record needs a key or a value")
    if partition is not None and not 0 <= partition < topic.partitions and not topic.grows:
        raise SendError(f"send to {topic.name}: partition {partition} is not one of its {topic.partitions}")
    size = len(key or b"") + len(value or b"") + sum(len(name) + len(data or b"") for name, data in headers)
    if size + RECORD_OVERHEAD_BYTES > max_message_bytes:
        raise RecordTooLargeError(
            f"a record of {size:,} bytes is over the limit of topic {topic.name}, {max_message_bytes:,} bytes: split it"
        )


def _outcome(sending: asyncio.Future[RecordMetadata], doing: str) -> tuple[Position | None, BusError | None]:
    if sending.cancelled():
        return None, SendError(f"{doing}: cancelled before it was durable")
    error = sending.exception()
    if error is None:
        metadata = sending.result()
        return Position(partition=metadata.partition, offset=metadata.offset), None
    known = translated(error, doing)
    return None, known if isinstance(known, ProducerFencedError | RecordTooLargeError) else SendError(str(known))


_TRACED = frozenset({TASKS.name, EXPERIENCES.name})
_TRACER = trace.get_tracer("trinity_bus.bus")


def start_send_span(
    topic: Topic,
    *,
    full_name: str,
    client_id: str,
    key: str | None,
    record: Record | ExperienceGroup,
    parent: Context | None,
) -> Span | None:
    """Return a started ``send <topic>`` span, where sends to this topic have one."""
    if topic.name not in _TRACED:
        return None
    attributes: dict[str, AttributeValue] = {
        names.MESSAGING_SYSTEM: "kafka",
        names.MESSAGING_OPERATION_NAME: "send",
        names.MESSAGING_OPERATION_TYPE: "send",
        names.MESSAGING_DESTINATION_NAME: full_name,
        names.MESSAGING_DESTINATION_TEMPLATE: topic.name,
        names.MESSAGING_CLIENT_ID: client_id,
        **_work(record),
    }
    if key is not None:
        attributes[names.MESSAGING_KAFKA_MESSAGE_KEY] = key
    return _TRACER.start_span(f"send {topic.name}", context=parent, kind=SpanKind.PRODUCER, attributes=attributes)


def end_send_span(span: Span, position: Position | None, error: BaseException | None) -> None:
    # with where the record lies, or with why it does not
    if position is not None:
        span.set_attribute(names.MESSAGING_DESTINATION_PARTITION_ID, str(position.partition))
        span.set_attribute(names.MESSAGING_KAFKA_OFFSET, position.offset)
    if error is not None:
        span.set_attribute(names.ERROR_TYPE, type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _work(record: Record | ExperienceGroup) -> dict[str, AttributeValue]:
    if isinstance(record, ExperienceGroup):
        return {
            names.RL_TASK_ID: record.task_id,
            names.RL_BATCH_ID: record.batch_id,
            names.RL_ATTEMPT: record.attempt,
            names.RL_SAMPLES: len(record),
        }
    if isinstance(record, Task):
        return {names.RL_TASK_ID: record.task_id, names.RL_BATCH_TYPE: record.batch_type}
    return {}


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
