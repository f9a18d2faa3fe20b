"""All that the bus uses of aiokafka beyond what it documents; nobody else reaches into it.

The library documents its producer, its consumer, its administrator's methods, structs and errors. What is here may
change with any of its versions, and is why ``pyproject.toml`` allows one minor version alone: ``test_internals.py`` has
a line for each part, and says which is gone or takes other arguments.

* The way to send requests that the library lacks (see ``administration.requests``).
* A client that knows its connections, to break off those that do not close (see ``shutdown``), and those to brokers
  that accept them and say nothing: a machine that is lost, or a process that hangs.
* Its question for topics, which without a name is for all of the cluster, and may create those that it names; that of
  the administrator too, which shall create nothing that it looks at.
* The producer's batches and the state of its transaction, to tell what is not durable yet and to give it up.
* The consumer's unpacking of batches, which :mod:`trinity_bus.bus.read.batches` replaces; and its question for the end.
* Two faults, mended when this module is imported: see :func:`_count_on` and ``BACKOFF_OVERRIDE``.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import client as client_module
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import client as admin_module
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.consumer import consumer as consumer_module
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from aiokafka.errors import AuthenticationFailedError, KafkaConnectionError, KafkaError, RequestTimedOutError
from aiokafka.partitioner import murmur2
from aiokafka.producer import producer as producer_module
from aiokafka.producer import sender
from aiokafka.producer.message_accumulator import BatchBuilder, MessageBatch
from aiokafka.producer.transaction_manager import TransactionManager, TransactionState
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from aiokafka.protocol.api import Request
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import calc_crc32c

from trinity_bus import awake
from trinity_bus.bus.client.credentials import Refusals, doubtful_settings

# The library's own names that the rest of the bus takes from here.
__all__ = [
    "READ_COMMITTED",
    "AIOKafkaConnection",
    "BatchBuilder",
    "CreateAclsRequest",
    "DefaultRecordBatch",
    "DeleteAclsRequest",
    "DescribeAclsRequest",
    "TransactionState",
    "calc_crc32c",
    "murmur2",
]

# When a transaction begins, the broker may still write the markers of the one before it, and refuses the new one for
# these few milliseconds. The client would look again after 20 ms, most of what a transaction takes.
sender.BACKOFF_OVERRIDE = 0.003

# how long a broker may take to let a client in, as in Kafka's own clients; it connects to no other meanwhile
CONNECT_S = 10.0
# of the numbers that an idempotent producer gives its records; 0 follows, as in Kafka's own clients
MAX_SEQUENCE = 2**31 - 1


def _count_on(self: TransactionManager, partition: TopicPartition, increment: int) -> None:
    self._sequence_numbers[partition] = (self._sequence_numbers[partition] + increment) & MAX_SEQUENCE


# The client would go on with -2^31, which brokers refuse: after 2^31 records a partition could not be written any more.
TransactionManager.increment_sequence_number = _count_on


# whose connection is being opened: the library does not tell the function that opens it
_opener: ContextVar["LogClient"] = ContextVar("opener")


class LogClient(AIOKafkaClient):  # type: ignore[misc]  # the library has no types
    # What producers, consumers and administrators are built on.
    _topics: set[str]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Until they are closed: over TLS that takes an answer, for which the library keeps none of them.
        self._opened: set[AIOKafkaConnection] = set()
        self._is_stopped = False
        self.refusals = Refusals()

    async def bootstrap(self) -> None:
        """Connect for the first time. Raises AuthenticationFailedError or KafkaConnectionError."""
        token = _opener.set(self)
        try:
            await super().bootstrap()
        except KafkaConnectionError as error:
            # The library says no more than that it could not.
            if (refusal := self.refusals.last) is not None:
                raise AuthenticationFailedError(refusal) from error
            raise
        finally:
            _opener.reset(token)

    async def _get_conn(self, *args: Any, **options: Any) -> AIOKafkaConnection | None:
        # Written out, because it is on the way of every request.
        token = _opener.set(self)
        try:
            return await super()._get_conn(*args, **options)
        finally:
            _opener.reset(token)

    async def learn(self, topics: set[str]) -> bool:
        """Ask for topics, which are asked for from now on; whether any broker has answered."""
        # Another set, or the library does not see that it must ask again where it is asking already.
        self._topics = self._topics | topics
        updated: bool = await self.force_metadata_update()
        return updated

    def forget(self, topics: set[str]) -> None:
        self._topics = self._topics - topics

    async def connect(self, connection: AIOKafkaConnection) -> None:
        """Open a connection, to be closed with this client. Raises KafkaConnectionError."""
        self._opened.add(connection)
        try:
            if not self._is_stopped:
                async with awake.timeout(CONNECT_S):
                    await connection.connect()
                self.refusals.forget()
        except TimeoutError as error:
            raise KafkaConnectionError(f"{connection.host}:{connection.port} did not answer in time") from error
        except (OSError, KafkaError) as error:
            if (doubt := doubtful_settings(error)) is not None:
                self.refusals.refused(awake.now(), f"{connection.host}:{connection.port} says {error}; {doubt}")
            raise
        finally:
            if was_connected(connection):
                connection._closed_fut.add_done_callback(lambda _: self._opened.discard(connection))
            else:
                self._opened.discard(connection)
            if self._is_stopped:
                _abort(connection)
        if self._is_stopped:
            raise KafkaConnectionError("the client has been stopped")

    def check_credentials(self) -> None:
        """Raise AuthenticationFailedError where brokers have refused the credentials for longer than they may."""
        if (refusal := self.refusals.given_up(awake.now())) is not None:
            raise AuthenticationFailedError(refusal)

    async def send(self, node_id: Any, request: Any, **options: Any) -> Any:
        # A broker that does not answer in time counts as lost, for all that it is asked.
        try:
            return await super().send(node_id, request, **options)
        except RequestTimedOutError:
            self.break_off(node_id)
            raise

    def break_off(self, node_id: Any = None) -> None:
        """Break off what a broker is asked, or all of them, and learn anew which there are and what each leads."""
        for (node, _), connection in list(self._conns.items()):
            if node_id in (None, node):
                connection.close(reason=CloseReason.CONNECTION_TIMEOUT)

    def abort_closing(self) -> None:
        # Close at once what is being closed.
        for connection in self._opened:
            if was_connected(connection) and not connection.connected():
                abort_transport(connection)

    def end(self) -> None:
        """Close at once whatever is open, and open nothing any more."""
        self._is_stopped = True
        if self._sync_task is not None:
            self._sync_task.cancel()
        for connection in self._opened:
            _abort(connection)


def _abort(connection: AIOKafkaConnection) -> None:
    connection.close()
    if was_connected(connection):
        abort_transport(connection)


async def _create_conn(host: str, port: int, **options: Any) -> AIOKafkaConnection:
    connection = AIOKafkaConnection(host, port, **options)
    await _opener.get().connect(connection)
    return connection


def _metadata_request(topics: list[str] | None) -> MetadataRequest:
    return MetadataRequest(topics or [], allow_auto_topic_creation=False)


client_module.create_conn = _create_conn
admin_module.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)
# A client that has no topic yet would ask for all of the cluster: seconds of both sides where many meshes share it.
client_module.MetadataRequest = _metadata_request
admin_module.AIOKafkaClient = consumer_module.AIOKafkaClient = producer_module.AIOKafkaClient = LogClient


async def ask(admin: AIOKafkaAdminClient, request: Request[Any], node: int | None = None) -> Any:
    """Send a request that the library has no method for, to broker ``node`` or any, and return its response."""
    if node is None:
        return await admin._send_request(request)
    return await admin._send_request_to_node(node, request)


def client_of(owner: AIOKafkaConsumer | AIOKafkaAdminClient) -> LogClient:
    client: LogClient = owner._client
    return client


async def written_ends(consumer: AIOKafkaConsumer, asked: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end of all records of each partition, those of open transactions too."""
    # The consumer's own question is that of one who reads what is committed: it ends before the first that is open.
    asking = copy(consumer._fetcher)
    asking._isolation_level = READ_UNCOMMITTED
    ends: dict[TopicPartition, int] = await asking.end_offsets(asked, consumer._request_timeout_ms)
    return ends


def was_connected(connection: AIOKafkaConnection) -> bool:
    return connection._protocol is not None


def abort_transport(connection: AIOKafkaConnection) -> bool:
    """Break off a connection that was connected; whether there was anything left to break off."""
    transport = connection._protocol._transport
    if transport is not None:
        transport.abort()
    return transport is not None


def transaction_of(producer: AIOKafkaProducer) -> TransactionManager:
    return producer._txn_manager


def add_to_transaction(producer: AIOKafkaProducer, partition: TopicPartition) -> None:
    """Have a partition added to the open transaction before there is a batch for it."""
    transaction_of(producer).maybe_add_partition_to_txn(partition)


def is_newest(producer: AIOKafkaProducer, partition: TopicPartition, batch: BatchBuilder) -> bool:
    """Whether a batch that was handed over waits to be sent, and no other behind it: so it may take more records."""
    # One that was taken to be sent has its sequence numbers already, and is built a moment later.
    queued = producer._message_accumulator._batches.get(partition)
    return bool(queued) and queued[-1]._builder is batch


def pending_offsets(manager: TransactionManager) -> int:
    return len(manager._pending_txn_offsets)


def keep_batches_for(producer: AIOKafkaProducer, seconds: float) -> None:
    """Have batches wait so long for a leader of their partition; the client takes the limit of one request."""
    producer._message_accumulator._batch_ttl = seconds


def queued_batches(producer: AIOKafkaProducer) -> list[MessageBatch]:
    return [batch for batches in producer._message_accumulator._batches.values() for batch in batches]


def unsent_batches(producer: AIOKafkaProducer) -> list[MessageBatch]:
    """Return the batches that are not durable yet, under way or queued."""
    return [*producer._message_accumulator._pending_batches, *queued_batches(producer)]


def oldest_of(batches: Iterable[MessageBatch]) -> MessageBatch | None:
    return min(batches, key=lambda batch: batch._ctime, default=None)


def waits_for(producer: AIOKafkaProducer) -> object | None:
    """Return what a producer waits for its brokers with, the same as long as it is the same."""
    # It is a batch; where all are durable the offsets of a group, or the end of a transaction.
    thing: object | None = oldest_of(unsent_batches(producer))
    manager = transaction_of(producer)
    if thing is None and manager._pending_txn_offsets:
        thing = manager._pending_txn_offsets[0]
    if thing is None and manager.needs_transaction_commit() is not None:
        thing = manager.wait_for_transaction_end()
    return thing


def look_at_errors(batches: Iterable[MessageBatch]) -> None:
    # Else asyncio reports each batch that a client still had at its end, traceback and all, as never looked at.
    for batch in batches:
        waiter = batch._drain_waiter
        if waiter.done() and not waiter.cancelled():
            waiter.exception()


async def close_sender(producer: AIOKafkaProducer) -> None:
    # Stopping the producer would wait for what cannot be sent.
    await producer._sender.close()


def fail_all(producer: AIOKafkaProducer, error: Exception) -> None:
    batches, accumulator = unsent_batches(producer), producer._message_accumulator
    # Batches that wait for a retry count as not pending, and would be missed at their end.
    accumulator._pending_batches.update(batches)
    accumulator.fail_all(error)
    look_at_errors(batches)


def unpack_with(frames: type, records: type) -> None:
    fetcher.MemoryRecords = frames
    fetcher.PartitionRecords = records
