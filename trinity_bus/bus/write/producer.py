"""Writing to the log: nothing counts as sent before it is durable, and nothing is written twice.

Every producer is idempotent and waits for all replicas. One with a ``transactional_id`` writes inside transactions
only, and its start fences every earlier producer of that id: whatever that one had not committed is aborted before
``start`` returns, and whatever it still tries raises :class:`~trinity_bus.errors.ProducerFencedError`.

States of a transaction::

    READY --transaction()--> OPEN --body ends, all sends durable--> ENDING --commit answered--> COMMITTED (READY again)
                              |                                       '----anything else-----> FATAL
                              |---body raises, or a send failed---> ABORTED   (READY again)
                              |                '--no answer-------> FATAL
                              `---fenced--------------------------> FATAL     (the producer is of no more use)

Once the end of a transaction may have been asked for, only the broker's answer says how it has ended. Without it, after
a process stood still for instance, nothing is known: it is neither aborted nor tried again, and this producer writes
nothing any more. The start of the next one of its id settles the outcome, and what readers then see is what counts.

A broker that goes away is waited for: records stay queued, in their order, and are sent when it is back, each once,
because it knows their sequence numbers. What has waited for ``kafka.outage_s`` is given up, and the producer with it:
everything queued fails with :class:`~trinity_bus.errors.SendError`, and whatever is sent later too. A start waits as
long for a broker that is busy or not ready yet for transactions.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError
from opentelemetry.trace import Span

from schemas.codec import encode
from schemas.event import Position
from schemas.experience import ExperienceGroup
from schemas.record import Record
from schemas.topic import CONTENT_TYPE, MSGPACK, TRACEPARENT, Topic
from schemas.topics import DEAD_LETTERS
from trinity_bus import awake
from trinity_bus.bus.client.connection import kafka_errors, translated
from trinity_bus.bus.client.internals import fail_all, unsent_batches
from trinity_bus.bus.client.shutdown import bounded_shutdown
from trinity_bus.bus.partitioning import StickyPartitions, partition_of
from trinity_bus.bus.read.received import SLICE_S, Received, dead_letter
from trinity_bus.bus.write.cloud_events import dead_letter_headers, record_headers
from trinity_bus.bus.write.delivery import Outgoing, Parts, Placed, Queued, check, refused, start_send_span
from trinity_bus.bus.write.outages import (
    CANCELLED_S,
    CLOSE_S,
    LEAVE_S,
    abort,
    check_committable,
    commit,
    fatal_error,
    give_up,
    is_ended,
    limit_outages,
)
from trinity_bus.bus.write.producer_client import started_client
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, SendError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import metrics
from trinity_bus.telemetry.spans import traceparent as current_traceparent

log = logging.getLogger(__name__)

_MSGPACK = MSGPACK.encode()


class Producer:
    """Writes records, idempotently and durably. Made by :meth:`trinity_bus.bus.Bus.producer`.

    An async context manager; ``stop`` returns when everything that was sent is durable, or raises.
    """

    def __init__(self, settings: KafkaSettings, *, client_id: str, transactional_id: str | None = None) -> None:
        self.transactional_id = transactional_id
        self._settings = settings
        self._client_id = client_id
        self._running: AIOKafkaProducer | None = None
        self._queued = Queued(self._connected, settings)
        self._watch: asyncio.Task[None] | None = None
        self._turn_at = 0.0
        self._sticky: dict[str, StickyPartitions] = {}
        self._one_transaction = asyncio.Lock()
        self._outgoing: Outgoing | None = None

    async def start(self) -> None:
        """Connect. With a transactional id, fence earlier producers of that id and abort what they left open."""
        client = await started_client(self._settings, self._client_id, self.transactional_id)
        self._running = client
        self._watch = asyncio.create_task(limit_outages(client, self._client_id, self._settings.outage_s))

    async def stop(self) -> None:
        """Make durable what was sent, then disconnect. What is not committed is not waited for."""
        client, self._running = self._running, None
        if client is None:
            return
        if self._watch is not None:
            self._watch.cancel()
        transactional = self.transactional_id is not None
        limit_s = LEAVE_S if transactional else min(CLOSE_S, self._settings.outage_s)
        try:
            async with awake.timeout(limit_s), bounded_shutdown(client.client):
                await client.stop()
            if all(batch.future.done() for batch in unsent_batches(client)):
                return
            # They came into its queue while it was closing.
            fail_all(client, KafkaConnectionError("the producer was closed"))
            why = "a send was still waiting for room; await all sends before"
        except (TimeoutError, asyncio.CancelledError) as error:
            await give_up(client, KafkaTimeoutError("the producer was closed"))
            if isinstance(error, asyncio.CancelledError):
                raise
            why = f"not all records are durable after {limit_s:g} s; is the broker running?"
        if not transactional:
            raise SendError(f"close producer {self._client_id}: {why}")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def send(
        self,
        topic: Topic,
        key: str,
        record: Record | ExperienceGroup,
        *,
        encoded: bytes | None = None,
        partition: int | None = None,
        traceparent: str | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Awaitable[Position]:
        """Send one record. Returns when it is queued (which waits while the queue is full).

        Inside a transaction records are collected, and sent together at its end: see ``delivery``.

        Args:
            encoded: Its bytes, where it came as such: they are sent as they are.
            partition: Overrides that of the key; or of the moment, in a topic in which any partition will do.
            traceparent: The trace it belongs to; the current span's where absent.

        Returns:
            Something to await for the record's position; resolved once it is durable, and raising
            :class:`~trinity_bus.errors.SendError` if it never will be.

        Raises:
            EncodeError, RecordTooLargeError: Its readers, or the topic, would refuse it. Nothing was sent.
            ProducerFencedError: Another producer has taken over.
        """
        value = encode(record) if encoded is None else encoded
        full_name = topic.full_name(self._settings.namespace)
        span = start_send_span(
            topic, full_name=full_name, client_id=self._client_id, key=key, record=record, parent=traceparent
        )
        if span is not None:
            traceparent = current_traceparent(span)
        typed = [(CONTENT_TYPE, _MSGPACK), *headers]
        if topic.cloud_events:
            typed += record_headers(self._settings.namespace, topic, record.SCHEMA, record.VERSION, value)
        return await self.send_raw(
            topic, key, value, partition=partition, traceparent=traceparent, headers=typed, span=span
        )

    async def send_raw(
        self,
        topic: Topic,
        key: str | bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        traceparent: str | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        span: Span | None = None,
    ) -> Awaitable[Position]:
        """Send bytes as they are: tombstones (``None``), dead letters, entries of a changelog. Else like :meth:`send`.

        A ``traceparent`` among ``headers`` is kept as it is. A ``span`` ends when it is known how the send has ended.
        """
        raw_key = key.encode() if isinstance(key, str) else key
        all_headers = list(headers)
        if not any(header == TRACEPARENT for header, _ in all_headers):
            context = traceparent or current_traceparent()
            if context is not None:
                all_headers.append((TRACEPARENT, context.encode()))
        if partition is None:
            partition = self._partition_of(topic, raw_key, value)
        began = time.perf_counter()
        try:
            placed = await self._add(topic, partition, (raw_key, value, all_headers))
        except BaseException as error:
            refused(topic, span, began, error)
            raise
        if span is not None and span.is_recording():
            placed.trace(span)
        # Not before: those that send in the same turn would overtake this one.
        await self._let_others_run()
        return placed

    async def _add(self, topic: Topic, partition: int, parts: Parts) -> Placed:
        check(topic, partition, parts, max_message_bytes=self._settings.max_message_bytes(topic))
        place = TopicPartition(topic.full_name(self._settings.namespace), partition)
        return await (self._outgoing or self._queued).add(topic, place, parts)

    async def send_all(self, topic: Topic, entries: Iterable[tuple[str, bytes | None]], *, partition: int) -> None:
        """Send many keys with their values to one partition, without headers, as part of the open transaction."""
        if self._outgoing is None:
            raise BusError(f"send to {topic.name}: many records at once need an open transaction")
        for key, value in entries:
            await self._let_others_run()
            await self._add(topic, partition, (key.encode(), value, []))

    def announce(self, topic: Topic) -> None:
        """Have the brokers prepare the open transaction, for a body that is about to wait for something else.

        ``topic`` has one partition, that it will write to, besides those that it has written to so far.
        """
        if self._outgoing is None:
            raise BusError(f"announce {topic.name}: no transaction is open")
        with kafka_errors(f"announce {topic.name}"):
            self._outgoing.announce(topic)

    async def send_dead_letter(
        self, received: Received[Any], reason: str, detail: str, *, to: Topic = DEAD_LETTERS
    ) -> Awaitable[Position]:
        """Put a record that could not be taken where operators look, count it and log it; ``reason`` is one word."""
        key, value, headers = dead_letter(received, reason, detail, self._settings.max_message_bytes(to))
        metrics.DEAD_LETTERS.add(
            1, {names.MESSAGING_DESTINATION_TEMPLATE: received.topic.name, names.DEAD_LETTER_REASON: reason}
        )
        log.warning("dead letter from %s: %s: %s", received.place, reason, detail)
        events = dead_letter_headers(self._settings.namespace, to, received.place)
        return await self.send_raw(to, key, value, headers=(*headers, *events))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Everything sent inside becomes visible together when the body ends, or not at all if it raises.

        One at a time: a second waits for the first. It commits only if every record of it is durable.

        Raises:
            ProducerFencedError: Another producer has taken over; nothing of this transaction counts.
            SendError: A record could not be written; everything was aborted.
            BusError: The transaction was aborted, or its outcome is not known. In the latter case this producer is of
                no more use: its successor's start settles the outcome.
        """
        async with self._one_transaction:
            client = self._connected()
            doing = f"begin a transaction of {self.transactional_id}"
            fatal = fatal_error(client)
            if fatal is not None:
                raise translated(fatal, doing)
            with kafka_errors(doing):
                await client.begin_transaction()
            outgoing = self._outgoing = Outgoing(client, self._settings)
            try:
                yield
                await self._make_durable(outgoing)
                check_committable(client)
            except asyncio.CancelledError:
                try:
                    await self._end(client, abort(client, CANCELLED_S))
                except BusError as error:
                    log.warning("%s; this producer is of no more use", error)
                raise
            except BaseException:
                await self._end(client, abort(client, self._settings.outage_s))
                raise
            finally:
                self._outgoing = None
                outgoing.forget()
                for position in outgoing.sent:
                    # Their errors are this transaction's, and it has one already; else asyncio would report each.
                    position.add_done_callback(_look_at)
            await self._end(client, commit(client, self._settings.outage_s))

    async def _end(self, client: AIOKafkaProducer, ending: Coroutine[Any, Any, None]) -> None:
        # Commit or abort. Whatever comes of it but the broker's answer is the end of this client.
        try:
            await ending
        except BaseException as error:
            if isinstance(error, Exception) or not is_ended(client):
                await give_up(client, KafkaError(f"the outcome of a transaction is not known ({error or 'cancelled'})"))
            raise

    async def send_offsets(self, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        """Commit ``(topic name, partition)`` to the offset to read next for a group, in the open transaction."""
        if not offsets:
            return
        named = {
            TopicPartition(f"{self._settings.namespace}.{topic}", partition): offset
            for (topic, partition), offset in offsets.items()
        }
        # A broker that verifies a produce request and an offset commit of one transaction at the same time refuses the
        # former as a passing network error (NOT_ENOUGH_REPLICAS to this client), and the retry costs 100 ms.
        if self._outgoing is not None:
            await self._make_durable(self._outgoing)
        with kafka_errors(f"commit offsets of {group}"):
            await self._connected().send_offsets_to_transaction(named, group)

    async def flush(self) -> None:
        with kafka_errors("flush"):
            await self._connected().flush()

    def _partition_of(self, topic: Topic, key: bytes | None, value: bytes | None) -> int:
        if key is not None and not topic.any_partition:
            return partition_of(key, topic.partitions)
        cluster, name = self._connected().client.cluster, topic.full_name(self._settings.namespace)
        sticky = self._sticky.get(topic.name)
        if sticky is None:
            first = partition_of(self._client_id, topic.partitions)
            sticky = self._sticky[topic.name] = StickyPartitions(topic.partitions, first)
        return sticky.place(len(value or b""), awake.now(), lambda: len(cluster.partitions_for_topic(name) or ()))

    async def _make_durable(self, outgoing: Outgoing) -> None:
        # A commit of the client's does not look at what failed.
        await outgoing.hand_over()
        await asyncio.gather(*outgoing.sent)

    async def _let_others_run(self) -> None:
        # While there is room in the queue, nothing else in a send turns the event loop.
        now = time.perf_counter()
        if now > self._turn_at:
            # Others that send in this very turn go on: one is enough to end it.
            self._turn_at = now + SLICE_S
            await asyncio.sleep(0)
            self._turn_at = time.perf_counter() + SLICE_S

    def _connected(self) -> AIOKafkaProducer:
        if self._running is None:
            raise BusError(f"producer {self._client_id} is not started, or is stopped")
        return self._running


def _look_at(position: asyncio.Future[Position]) -> None:
    if not position.cancelled():
        position.exception()
