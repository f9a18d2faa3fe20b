"""What the bus uses of aiokafka beyond what it documents: each part is there, and nothing but ``internals`` uses any.

A line that fails here after an upgrade of aiokafka names what ``trinity_bus/bus/client/internals.py`` has to do
otherwise.
"""

import inspect
import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer import fetcher
from aiokafka.producer import sender
from aiokafka.producer.message_accumulator import MessageAccumulator, MessageBatch
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.protocol.metadata import MetadataRequest_v5

from trinity_bus.bus.client import internals

ATTRIBUTES = {
    "admin": "_client _send_request",
    "batch": "_builder _ctime _drain_waiter",
    "client": "_conns _get_conn _sync_task _topics bootstrap force_metadata_update send",
    "connection": "_closed_fut _protocol close connect connected",
    "consumer": "_client _request_timeout_ms",
    "producer": "_sender.close client",
    "producer._message_accumulator": "_batch_ttl _batches _pending_batches fail_all",
    "producer._txn_manager": "_pending_txn_offsets _sequence_numbers fatal_error increment_sequence_number "
    "is_fatal_error maybe_add_partition_to_txn needs_transaction_commit partitions_to_add wait_for_transaction_end",
}
ARGUMENTS = [
    (AIOKafkaAdminClient._send_request, ["self", "request", "node_id"]),
    (AIOKafkaAdminClient._send_request_to_node, ["self", "node_id", "request"]),
    (MessageAccumulator.fail_all, ["self", "exception"]),
    (TransactionManager.fatal_error, ["self", "exc"]),
    (AIOKafkaConnection.connected, ["self"]),
    (fetcher.Fetcher.end_offsets, ["self", "partitions", "timeout_ms"]),
]
BY_NAME = [
    (AIOKafkaClient, "MetadataRequest(list(topics) if topics else None)"),
    (AIOKafkaClient, "MetadataRequest([])"),
    (fetcher, "MemoryRecords(part_data[-1])"),
    (fetcher, "PartitionRecords("),
    (fetcher, "OffsetRequest(-1, self._isolation_level,"),
    (inspect.getmodule(AIOKafkaConsumer), "self._fetcher = Fetcher("),
    (sender, "return BACKOFF_OVERRIDE"),
    (TransactionManager, "def increment_sequence_number(self, tp: TopicPartition, increment: int)"),
    (inspect.getmodule(AIOKafkaClient), "await create_conn("),
    (inspect.getmodule(AIOKafkaConsumer), "self._client = AIOKafkaClient("),
    (inspect.getmodule(AIOKafkaProducer), "self.client = AIOKafkaClient("),
    (inspect.getmodule(AIOKafkaAdminClient), "self._client = AIOKafkaClient("),
]
"""What is replaced by its name: where the library uses it, and how."""
ADVICE = f"aiokafka {aiokafka.__version__} is not what trinity_bus/bus/client/internals.py was written for"


def objects() -> SimpleNamespace:
    """One of each, connected to nothing."""
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", transactional_id="test")
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    # Nothing was opened, and they warn when they are collected.
    producer._closed = consumer._closed = True
    return SimpleNamespace(
        admin=AIOKafkaAdminClient(bootstrap_servers="127.0.0.1:1"),
        batch=MessageBatch(TopicPartition("topic", 0), producer.create_batch(), 1.0, 0.0),
        client=AIOKafkaClient(bootstrap_servers="127.0.0.1:1"),
        connection=AIOKafkaConnection("127.0.0.1", 1),
        consumer=consumer,
        producer=producer,
    )


@pytest.mark.parametrize("path", [f"{of}.{name}" for of, names in ATTRIBUTES.items() for name in names.split()])
async def test_a_part_is_there(path: str) -> None:
    try:
        attrgetter(path)(objects())
    except AttributeError as error:
        pytest.fail(f"{ADVICE}: {path}: {error}")


@pytest.mark.parametrize(("function", "arguments"), ARGUMENTS, ids=lambda value: getattr(value, "__qualname__", ""))
def test_a_part_takes_what_it_is_given(function: Callable[..., Any], arguments: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == arguments, f"{ADVICE}: {function.__qualname__}"


@pytest.mark.parametrize(("place", "use"), BY_NAME, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_replaced_is_used_by_its_name(place: Any, use: str) -> None:
    assert use in inspect.getsource(place), f"{ADVICE}: {place.__name__} has no {use!r}"


def test_every_name_that_is_handed_on_is_there() -> None:
    assert [name for name in internals.__all__ if not hasattr(internals, name)] == []


def test_nobody_else_reaches_into_the_library() -> None:
    private = re.compile(
        r"aiokafka\.(client|conn|consumer|partitioner|producer|protocol|record|util)\b(?!\.sender\"|\.fetcher\"|\")"
        r"|\b(client|admin|connection|producer|consumer|batch|manager|accumulator)\._[a-z]"
    )
    folder = Path(internals.__file__).parents[1]
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        if path.name not in {"internals.py", "requests.py"}
        for line in path.read_text().splitlines()
        if private.search(line)
    ]
    assert found == []


async def test_an_administrator_creates_no_topic_that_it_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def send(request: Any) -> Any:
        asked.append(request)
        return Mock(to_object=lambda: {"topics": []})

    admin = AIOKafkaAdminClient(bootstrap_servers="127.0.0.1:9")
    monkeypatch.setattr(admin, "_send_request", send)
    await admin.describe_topics(["mistyped.tasks"])
    assert asked[0].build(MetadataRequest_v5).allow_auto_topic_creation is False
