import asyncio
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError, ProducerFenced, UnknownTopicOrPartitionError

from schemas.topics import BATCHES, EXPERIENCES, TASKS, TOPICS
from trinity_bus.bus import Bus
from trinity_bus.bus.client.connection import client_options, kafka_errors
from trinity_bus.bus.topics import ExistingTopic, mismatches
from trinity_bus.bus.write.delivery import RECORD_OVERHEAD_BYTES, check
from trinity_bus.bus.write.producer_client import MAX_BATCH_BYTES
from trinity_bus.config import KafkaSettings
from trinity_bus.config.mesh import MIN_RECORD_MIB
from trinity_bus.errors import (
    BrokerUnreachableError,
    BusError,
    ConfigError,
    ProducerFencedError,
    RecordGoneError,
    RecordTooLargeError,
    SendError,
)
from workers.coordinator.pending_commit import is_input_error


@pytest.mark.parametrize("record_mib", [5, 65])
def test_a_record_over_the_limit_is_refused_by_name(record_mib: int) -> None:
    limit = KafkaSettings(max_record_mib=record_mib).max_message_bytes(EXPERIENCES)
    assert limit == min(record_mib << 20, EXPERIENCES.max_message_bytes)
    check(EXPERIENCES, None, (b"k", bytes(limit - RECORD_OVERHEAD_BYTES - 1), []), max_message_bytes=limit)
    with pytest.raises(RecordTooLargeError, match=rf"over the limit of topic experiences, {limit:,} bytes"):
        check(EXPERIENCES, None, (b"k", bytes(limit - RECORD_OVERHEAD_BYTES), []), max_message_bytes=limit)
    with pytest.raises(RecordTooLargeError):
        check(EXPERIENCES, None, (b"k", b"", [("h", bytes(limit))]), max_message_bytes=limit)


def test_what_every_topic_needs_besides_large_groups_batches_and_steps_fits_the_smallest_records() -> None:
    smallest = KafkaSettings(max_record_mib=MIN_RECORD_MIB)
    cut = {topic.name for topic in TOPICS if smallest.max_message_bytes(topic) < topic.max_message_bytes}
    letters = {"dead-letters", "explorer-dead-letters", "trainer-dead-letters"}
    assert cut == {"experiences", "batches", "steps", "coordinator-state"} | letters
    for topic in TOPICS:
        assert KafkaSettings().max_message_bytes(topic) == topic.max_message_bytes
        assert topic.max_message_bytes > MAX_BATCH_BYTES + RECORD_OVERHEAD_BYTES


def test_a_record_needs_a_place_and_a_content() -> None:
    with pytest.raises(SendError, match="partition 8 is not one of its 8"):
        check(TASKS, 8, (b"k", b"v", []), max_message_bytes=1 << 20)
    # Topics that take more partitions may have more by now than they were made with.
    check(EXPERIENCES, 8, (b"k", b"v", []), max_message_bytes=1 << 20)
    with pytest.raises(SendError, match="a key or a value"):
        check(BATCHES, None, (None, None, []), max_message_bytes=1 << 20)
    check(BATCHES, 0, (b"k", None, []), max_message_bytes=1 << 20)


SMALL = f"its max.message.bytes is 1000 and must be at least {TASKS.max_message_bytes}, or "


@pytest.mark.parametrize(
    ("partitions", "cleanup", "max_bytes", "problem"),
    [
        (8, "delete", TASKS.max_message_bytes, None),
        (8, "delete", 1 << 30, None),
        (1, "delete", 1 << 30, "it has 1 partitions and needs exactly 8"),
        (9, "delete", 1 << 30, "it has 9 partitions and needs exactly 8"),
        (8, "compact", 1 << 30, "its cleanup.policy is compact and must be delete"),
        (8, "delete", 1000, SMALL + "TRINITY_BUS_MESH__MAX_RECORD_MIB smaller"),
    ],
)
def test_an_existing_topic_must_suit_its_records(
    partitions: int, cleanup: str, max_bytes: int, problem: str | None
) -> None:
    found = ExistingTopic(partitions, cleanup, max_bytes)
    assert mismatches(TASKS, found, TASKS.max_message_bytes) == ([] if problem is None else [problem])


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ProducerFenced(), ProducerFencedError, "do it: another process has started with the same transactional id"),
        (OffsetOutOfRangeError({"p": 3}), RecordGoneError, "retention has deleted it"),
        (KafkaConnectionError("no route"), BrokerUnreachableError, "is the broker running"),
        (UnknownTopicOrPartitionError(), BusError, "do it: UnknownTopicOrPartitionError"),
        (AssertionError("COMMITTING -> ABORTING"), BusError, "^do it: "),
        (KeyError(3), BusError, "^do it: "),
        (asyncio.CancelledError(), BusError, "^do it: "),
    ],
)
async def test_errors_of_the_client_become_ours(error: BaseException, kind: type[BusError], text: str) -> None:
    with pytest.raises(kind, match=text) as raised, kafka_errors("do it"):
        raise error
    assert not is_input_error(raised.value)
    with pytest.raises(ConfigError, match=r"^it stays$"), kafka_errors("do it"):
        raise ConfigError("it stays")


def test_connections_follow_the_settings(tmp_path: Path) -> None:
    plain = client_options(KafkaSettings(bootstrap_servers="a:1,b:2", request_timeout_s=1.5), "me")
    assert (plain["bootstrap_servers"], plain["request_timeout_ms"]) == (["a:1", "b:2"], 1500)
    login: dict[str, Any] = {"bootstrap_servers": "a:1", "sasl_username": "u", "sasl_password": "p"}
    secure = client_options(KafkaSettings(**login, security_protocol="SASL_SSL"), "me")
    assert secure["ssl_context"].check_hostname
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="TRINITY_BUS_KAFKA__SSL_CAFILE"):
        client_options(KafkaSettings(**login, security_protocol="SSL", ssl_cafile=tmp_path / "ca.pem"), "me")


async def test_no_broker_is_one_line_that_says_where_and_nothing_stays_open() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        bus = Bus(KafkaSettings(bootstrap_servers=address), client_id="test")
        where = f"no Kafka broker can be used at {address} (connection refused): is it running, and is "
        with pytest.raises(
            BrokerUnreachableError, match=f"^{re.escape(where)}TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS right[?]$"
        ):
            await bus.start()
        for attempt in (bus.producer().start, bus.reader(TASKS).start, bus.ensure_topics):
            with pytest.raises(BrokerUnreachableError, match=r"is the broker running\?"):
                await attempt()
        with pytest.raises(BrokerUnreachableError):
            await bus.end_offsets(TASKS)
        await bus.stop()


async def test_what_has_no_address_or_is_not_started_says_so() -> None:
    with pytest.raises(ConfigError, match=r"TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS is not set"):
        await Bus(KafkaSettings(), client_id="test").start()
    bus = Bus(KafkaSettings(bootstrap_servers="localhost:1"), client_id="test")
    for ask in (lambda: bus.producer().send_raw(TASKS, "k", b"v"), lambda: bus.reader(TASKS).batch(0)):
        with pytest.raises(BusError, match="not started"):
            await ask()
