"""Records on their way: in which batch each of them is, until that is durable or is known never to be.

Spans of sends are made by hand, because they must cover all of that. Only records that begin or end a unit of work get
one: tasks and experiences. Heartbeats, batches and changelogs would bury the trace.

A record goes into the batch of its partition, and all of a batch share one future. The client library makes one for
each record, with its callbacks, which took most of a send. Outside of transactions a batch is handed over with its
first record, and takes more until it is sent; those of a transaction are collected, and handed over together::

    add() --> QUEUED, in the newest batch (waits while that is full) ----------> SENT --durable--> its position is known
    add() --> COLLECTED, in the batch of its partition --hand_over()--> QUEUED ----^ '--refused--> SendError
                  '--the transaction ends without hand_over(), because its body has raised-------> SendError

So all partitions of a transaction are added to it with one request and written with one, where records that come one by
one cost a request for each partition that is new; ``announce`` makes that first request while something else is waited
for. A batch that is full is handed over, with all others, before the next record is taken: that bounds the memory.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaTimeoutError
from aiokafka.structs import RecordMetadata
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from schemas.event import Position
from schemas.experience import ExperienceGroup
from schemas.record import Record
from schemas.task import Task
from schemas.topic import Topic
from schemas.topics import EXPERIENCES, TASKS
from trinity_bus.bus.client.connection import kafka_errors, translated
from trinity_bus.bus.client.internals import BatchBuilder, add_to_transaction, is_newest
from trinity_bus.bus.write.producer_client import partitions_known
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, ProducerFencedError, RecordTooLargeError, SendError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import metrics, parent_context

log = logging.getLogger(__name__)

RECORD_OVERHEAD_BYTES = 512  # more than a batch header and a record header take on the wire

type Parts = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]  # of a record: key, value, headers


def check(topic: Topic, partition: int | None, parts: Parts, *, max_message_bytes: int) -> None:
    """Refuse what the broker would refuse, before anything is queued. Raises RecordTooLargeError or SendError."""
    key, value, headers = parts
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
        try:
            metadata = sending.result()
            if metadata.offset < 0:
                # A duplicate of a batch that the broker has and has forgotten: counted from there, positions would be
                # those of other records.
                return None, SendError(f"{doing}: it was durable at an earlier try, and the broker does not tell where")
            return Position(partition=metadata.partition, offset=metadata.offset), None
        except Exception as fault:  # noqa: BLE001 - whatever it is, somebody waits
            error = fault
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
    parent: str | None,
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
    context = None if parent is None else parent_context(parent)
    return _TRACER.start_span(f"send {topic.name}", context=context, kind=SpanKind.PRODUCER, attributes=attributes)


def end_send_span(span: Span, first: Position | None, error: BaseException | None, index: int = 0) -> None:
    # with where the record lies, so many after the first, or with why it does not
    if first is not None:
        span.set_attribute(names.MESSAGING_DESTINATION_PARTITION_ID, str(first.partition))
        span.set_attribute(names.MESSAGING_KAFKA_OFFSET, first.offset + index)
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


class Placed:
    """Awaitable for the position of a record in a batch; raises SendError if it never will be durable."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: "OutgoingBatch", index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, Position]:
        return self._batch.position(self._index).__await__()

    def trace(self, span: Span) -> None:
        """Have a span end when it is known how the send has ended."""
        self._batch.spans.append((self._index, span))


class OutgoingBatch:
    """Ends its spans, keeps the metrics and resolves ``first`` when the client knows the outcome."""

    def __init__(self, topic: Topic, place: TopicPartition, builder: BatchBuilder) -> None:
        self.place = place
        self.builder = builder
        self.spans: list[tuple[int, Span]] = []
        self.first: asyncio.Future[Position] = asyncio.get_running_loop().create_future()  # the position of its first
        self.hand_over: Callable[[], Awaitable[None]] | None = None  # as long as it is collected
        self._topic = topic
        self._waiting: list[asyncio.Future[None]] = []
        self._began = time.perf_counter()

    def append(self, parts: Parts) -> Placed | None:
        """Take a record, if there is room; there is for the first."""
        key, value, headers = parts
        if self.builder.append(timestamp=None, key=key, value=value, headers=headers) is None:
            return None
        return Placed(self, self.builder.record_count() - 1)

    async def send(self, client: AIOKafkaProducer, settings: KafkaSettings) -> None:
        """Give it to the client. Waits while the queue is full, through an outage if need be."""
        name, partition = self.place
        self.hand_over = None
        await partitions_known(client, name, settings, partition)
        while True:
            with kafka_errors(f"send to {name}"):
                try:
                    sending = await client.send_batch(self.builder, name, partition=partition)
                except KafkaTimeoutError:
                    log.warning("send to %s: the queue has been full for a while; is the broker running?", name)
                else:
                    break
        sending.add_done_callback(lambda sent: self.end(*_outcome(sent, f"send to {name}")))

    async def position(self, index: int) -> Position:
        if self.hand_over is not None:
            await self.hand_over()
        if not self.first.done():
            # A future that several tasks await would be cancelled for all of them, with any of them.
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        first = self.first.result()
        return Position(partition=first.partition, offset=first.offset + index)

    def end(self, first: Position | None, error: BaseException | None) -> None:
        if not self.first.done():
            if first is not None:
                self.first.set_result(first)
            elif error is not None:
                self.first.set_exception(error)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        records, spans = self.builder.record_count(), self.spans
        # Whoever keeps a position would keep the bytes of all the batch, and so would the newest of a partition.
        self.builder, self.spans, self._waiting = None, [], []
        for index, span in spans:
            end_send_span(span, first, error, index)
        _tell(self._topic, records, self._began, error)


def refused(topic: Topic, span: Span | None, began: float, error: BaseException) -> None:
    """Note that a record is in no batch."""
    _tell(topic, 1, began, error)
    if span is not None:
        end_send_span(span, None, error)


def _tell(topic: Topic, records: int, began: float, error: BaseException | None) -> None:
    attributes = metrics.messaging("send", topic.name, None if error is None else type(error).__name__)
    metrics.SENT_MESSAGES.add(records, attributes)
    metrics.SEND_DURATION.record(time.perf_counter() - began, attributes)


class Queued:
    """The records of a producer outside of transactions."""

    def __init__(self, client: Callable[[], AIOKafkaProducer], settings: KafkaSettings) -> None:
        self._client = client  # raises BusError where there is none
        self._settings = settings
        self._newest: dict[TopicPartition, OutgoingBatch] = {}
        self._opening: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def add(self, topic: Topic, place: TopicPartition, parts: Parts) -> Placed:
        """Queue a record, behind all that were added before."""
        # Whoever waits for room lets those behind wait, too, and finds theirs in one batch then: the lock is fair.
        async with self._opening[place]:
            client = self._client()  # that may have been stopped meanwhile
            newest = self._newest.get(place)
            if newest and is_newest(client, place, newest.builder) and (placed := newest.append(parts)):
                return placed
            batch = OutgoingBatch(topic, place, client.create_batch())
            batch.append(parts)
            await batch.send(client, self._settings)
            self._newest[place] = batch
            return Placed(batch, 0)


class Outgoing:
    """The records of an open transaction."""

    def __init__(self, client: AIOKafkaProducer, settings: KafkaSettings) -> None:
        self._client = client
        self._settings = settings
        self._collected: dict[TopicPartition, OutgoingBatch] = {}
        self._handing_over = asyncio.Lock()
        self.sent: list[asyncio.Future[Position]] = []  # the first position of each batch that was handed over

    async def add(self, topic: Topic, place: TopicPartition, parts: Parts) -> Placed:
        """Take a record. Whoever awaits the returned position inside the transaction has everything handed over."""
        while True:
            batch = self._collected.get(place)
            if batch is None:
                batch = self._collected[place] = OutgoingBatch(topic, place, self._client.create_batch())
                batch.hand_over = self.hand_over
            placed = batch.append(parts)
            if placed is not None:
                return placed
            await self.hand_over()

    def announce(self, topic: Topic) -> None:
        """Have the partitions of what was collected, and that of this topic, added to the transaction already."""
        for place in {*self._collected, TopicPartition(topic.full_name(self._settings.namespace), 0)}:
            add_to_transaction(self._client, place)

    async def hand_over(self) -> None:
        """Give everything that was collected to the client."""
        async with self._handing_over:
            while self._collected:
                _, batch = self._collected.popitem()
                batch.builder.close()
                self.sent.append(batch.first)
                try:
                    await batch.send(self._client, self._settings)
                except BaseException as error:
                    # Others wait for the same batch, and were not cancelled.
                    cancelled = SendError(f"send to {batch.place.topic}: cancelled before it was sent")
                    batch.end(None, error if isinstance(error, Exception) else cancelled)
                    raise

    def forget(self) -> None:
        """Note that the transaction is over: what was not handed over never will be."""
        for batch in self._collected.values():
            batch.hand_over = None
            self.sent.append(batch.first)
            why = f"send to {batch.place.topic}: the transaction was aborted before it was sent"
            batch.end(None, SendError(why))
        self._collected.clear()
