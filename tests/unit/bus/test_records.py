import asyncio
from collections import deque
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import encode
from schemas.task import Task
from schemas.topics import BATCHES, DEAD_LETTERS, ROLLOUTS, TASKS
from trinity_bus.bus import Undecodable, dead_letter, lane_partition, partition_of
from trinity_bus.bus.read.received import header, receive, receive_all
from trinity_bus.bus.read.wire_format import MAX_HEADERS
from trinity_bus.config import KafkaSettings

LIMIT = DEAD_LETTERS.max_message_bytes

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def consumed(
    value: bytes | None, *, key: bytes | None = b"k", headers: tuple[tuple[str, bytes], ...] = (), offset: int = 7
) -> ConsumerRecord:
    return ConsumerRecord("trinity.tasks", 3, offset, 1234, 0, key, value, None, 0, 0, headers)


def task(task_id: str = "t1") -> Task:
    return Task(task_id=task_id, workflow="math", prompt="1 + 1")


def test_the_last_of_several_headers_counts() -> None:
    headers = (("a", b"1"), ("b", b"x"), ("a", b"2"))
    assert header(headers, "a") == "2"
    assert header(headers, "c") is None
    assert header((("a", b"\xff"),), "a") is None


def test_a_record_is_received_with_its_place_and_trace() -> None:
    headers = (("traceparent", TRACE.encode()),)
    received = receive(TASKS, consumed(encode(task()), key=b"\xff1", headers=headers), TASKS.records)
    assert received.record == task()
    assert (received.partition, received.offset, received.timestamp_ms, received.place) == (3, 7, 1234, "tasks/3@7")
    # A key that is not text is kept.
    assert (received.traceparent, received.key, received.raw_key) == (TRACE, "\\xff1", b"\xff1")
    assert receive(TASKS, consumed(encode(task()), key=None), TASKS.records).key is None


@pytest.mark.parametrize(
    ("value", "reason"), [(b"\xc1", "not_msgpack_or_json"), (b"", "truncated"), (None, "no_value")]
)
def test_what_cannot_be_decoded_is_a_value_not_an_error(value: bytes | None, reason: str) -> None:
    received = receive(TASKS, consumed(value), TASKS.records)
    assert isinstance(received.record, Undecodable)
    assert received.record.reason == reason
    assert received.record.raw == received.raw == (value or b"")


def test_a_tombstone_and_raw_bytes_are_no_errors() -> None:
    tombstone = receive(BATCHES, consumed(None), BATCHES.records)
    assert (tombstone.record, tombstone.is_null) == (None, True)
    assert receive(DEAD_LETTERS, consumed(b"\xc1"), ()).record == b"\xc1"


def test_a_dead_letter_keeps_everything_and_says_why() -> None:
    headers = (("content-type", b"text/plain"), ("traceparent", TRACE.encode()), ("dlq.reason", b"earlier"))
    received = receive(TASKS, consumed(b"\xc1", key=b"\xff", headers=headers), TASKS.records)
    key, value, kept = dead_letter(received, "unknown_workflow", "no explorer knows 'm\ud800th'", LIMIT)
    assert (key, value) == (b"\xff", b"\xc1")
    assert kept == (
        ("content-type", b"text/plain"),
        ("traceparent", TRACE.encode()),
        ("dlq.reason", b"unknown_workflow"),
        ("dlq.detail", b"no explorer knows 'm\\ud800th'"),
        ("dlq.topic", b"tasks"),
        ("dlq.partition", b"3"),
        ("dlq.offset", b"7"),
    )


def test_a_dead_letter_has_no_more_headers_than_its_readers_take() -> None:
    headers = tuple((f"h{number}", b"") for number in range(MAX_HEADERS))
    *_, kept = dead_letter(receive(TASKS, consumed(b"\xc1", headers=headers), TASKS.records), "not_msgpack", "", LIMIT)
    assert [name for name, _ in kept] == ["dlq.reason", "dlq.detail", "dlq.topic", "dlq.partition", "dlq.offset"]


def test_a_dead_letter_of_nothing_is_nothing_and_details_are_cut() -> None:
    received = receive(TASKS, consumed(None), TASKS.records)
    _, value, headers = dead_letter(received, "no_value", "x" * 5000, LIMIT)
    assert value is None
    assert len(dict(headers)["dlq.detail"]) == 2000


@pytest.mark.parametrize(("size", "kept"), [(1000, 1000), ((5 << 20) - (64 << 10), 1024)])
def test_a_dead_letter_that_the_cluster_would_not_take_is_cut(size: int, kept: int) -> None:
    received = receive(BATCHES, consumed(b"\xc1" * size), BATCHES.records)
    limit = KafkaSettings(max_record_mib=5).max_message_bytes(DEAD_LETTERS)
    _, value, headers = dead_letter(received, "not_msgpack", "why", limit)
    assert len(value or b"") == kept
    assert (dict(headers).get("dlq.size") == str(size).encode()) == (kept < size)


async def test_decoding_lets_others_run_and_survives_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.bus.read.received.SLICE_S", 0.0)
    raw = deque((TASKS, consumed(encode(task(f"t{i}")), offset=i)) for i in range(100))
    into: list[Any] = []

    decoding = asyncio.create_task(receive_all(raw, into, lambda topic: topic.records, 100))
    for _ in range(10):
        await asyncio.sleep(0)
    assert 0 < len(into) < 100, "it gives way"
    decoding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await decoding
    await receive_all(raw, into, lambda topic: topic.records, 100)
    assert [received.offset for received in into] == list(range(100))
    assert not raw


@given(st.binary(max_size=40), st.integers(1, 64))
def test_keys_go_where_the_client_library_sends_them(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == DefaultPartitioner()(key, list(range(partitions)), [])


def test_partitions_are_those_of_the_java_client() -> None:
    # From the test of Kafka's own hash, org.apache.kafka.common.utils.UtilsTest.
    assert partition_of("21", 1 << 31) == -973932308 & 0x7FFFFFFF
    assert partition_of("foobar", 1 << 31) == -790332482 & 0x7FFFFFFF


@given(st.sampled_from(["explorer-", "judge-", "explorer-node-7-"]), st.integers(0, 10_000), st.integers(1, 64))
def test_as_many_explorers_with_numbers_as_there_are_lanes_have_one_each(fleet: str, first: int, lanes: int) -> None:
    numbers = range(first, first + lanes)
    assert sorted(lane_partition(f"{fleet}{number}", lanes) for number in numbers) == [*range(lanes)]


@pytest.mark.parametrize("name", ["explorer", "explorer-5f1c3d", "explorer-12a", "explorer-1234567890", "7"])
def test_an_explorer_without_a_number_has_the_lane_of_its_name(name: str) -> None:
    assert lane_partition(name) == partition_of(name, ROLLOUTS.partitions)
