"""Records through a real broker: there and back, readable or not, small and large, with their trace."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import uvloop
from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.util import calc_crc32c

from benchmarks._records import equal_samples
from schemas.event import ExplorerLeft, Position
from schemas.experience import ExperienceGroup
from schemas.task import Task
from schemas.topics import BATCHES, DEAD_LETTERS, EXPERIENCES, EXPLORER_EVENTS, ROLLOUTS, TASKS
from tests.support.mesh.mesh import with_topics
from tests.support.mesh.records import record_of, take
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus, Producer, Reader, Received, Undecodable, lane_partition, partition_of
from trinity_bus.bus.read.received import header
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import RecordGoneError, RecordTooLargeError

pytestmark = pytest.mark.integration
LIMIT_S = 120.0
GATHER_S = 20.0
"""Longer than any of what a test does meanwhile."""


def task(number: int) -> Task:
    return Task(task_id=f"t{number}", workflow="math", prompt="1 + 1")


def ids_of(found: list[Received[Any]]) -> list[str]:
    return [record_of(received).task_id for received in found]


def group(task_id: str, samples: int, tokens: int) -> ExperienceGroup:
    ids, logprobs = np.arange(samples * tokens) % 1000, np.full(samples * (tokens - 8), -0.5)
    return equal_samples(task_id, 8, ids, logprobs, np.ones(samples, np.float32))


async def arrival(reader: Reader) -> None:
    arriving = reader.arrival()
    if arriving is not None:
        await asyncio.wait([arriving], timeout=LIMIT_S)


@pytest.fixture
async def reader(bus: Bus) -> AsyncIterator[Reader]:
    """Of tasks, from the beginning."""
    async with bus.reader(TASKS, start="beginning") as reader:
        yield reader


async def test_who_reads_ahead_finds_all_that_came_while_it_was_busy_and_no_more_than_it_takes_at_once(
    bus: Bus, producer: Producer
) -> None:
    async with bus.reader(TASKS, start="end", max_records=3, ahead=True) as reader:
        await (await producer.send(TASKS, "t0", task(0)))
        await arrival(reader)
        for number in range(1, 5):
            await (await producer.send(TASKS, f"t{number}", task(number)))
        # Its owner does nothing; what came with the last one that there was room for is kept as well.
        await until(lambda: len(reader._raw) >= 3)
        first = await reader.batch(0)
        assert len(first) == 3
        assert sorted(ids_of(first + await take(reader, 2))) == [f"t{number}" for number in range(5)]


async def test_records_gather_at_the_broker_for_whom_nobody_waits_for(
    settings: KafkaSettings, producer: Producer
) -> None:
    async with (
        Bus(settings.model_copy(update={"request_timeout_s": 2 * GATHER_S}), client_id="test") as bus,
        bus.reader(EXPERIENCES, start="end", gather_s=GATHER_S) as patient,
        bus.reader(EXPERIENCES, start="end") as eager,
    ):
        few = asyncio.create_task(patient.batch(LIMIT_S))
        for task_id in ("a", "b"):
            await (await producer.send(EXPERIENCES, "one key", group(task_id, 1, 20)))
            assert await take(eager, 1)
        assert not few.done(), "they came one by one, as for whom somebody waits for"
        began = time.monotonic()
        # So many are sent at once.
        await (await producer.send(EXPERIENCES, "one key", group("c", 4, 60_000)))
        assert sorted(ids_of([*await few, *await take(patient, 3 - len(few.result()))])) == ["a", "b", "c"]
        assert time.monotonic() - began < GATHER_S


async def test_who_asks_for_one_key_gets_no_other_and_passes_over_them(bus: Bus, producer: Producer) -> None:
    async with bus.reader(TASKS, partitions=[3], start="end", key="mine") as reader:
        for number in range(10):
            sent = await producer.send(TASKS, "mine" if number % 3 == 0 else "other", task(number), partition=3)
            await sent
        assert ids_of(await take(reader, 4)) == ["t0", "t3", "t6", "t9"]
        await (await producer.send_raw(TASKS, "other", b"not a task", partition=3))
        async with asyncio.timeout(LIMIT_S):
            while reader.positions != {(TASKS.name, 3): 11}:
                assert await reader.batch(0.1) == []


async def test_a_record_comes_back_from_the_partition_of_its_key(producer: Producer, reader: Reader) -> None:
    positions = [await (await producer.send(TASKS, f"t{n}", task(n))) for n in range(50)]
    by_id = {record_of(record).task_id: record for record in await take(reader, 50)}
    for number, position in enumerate(positions):
        record = by_id[f"t{number}"]
        assert (record.partition, record.offset) == (position.partition, position.offset)
        assert record.partition == partition_of(f"t{number}", TASKS.partitions)
        assert header(record.headers, "content-type") == "application/vnd.msgpack"
        assert abs(record.timestamp_ms / 1000 - time.time()) < LIMIT_S
    assert sum(reader.positions.values()) == 50
    assert await reader.batch(0) == []


async def test_lag_is_what_the_log_has_beyond_what_was_returned(bus: Bus, producer: Producer) -> None:
    for number in range(12):
        await (await producer.send(TASKS, "same key", task(number)))
    # It knows the end of the log as of its last fetch.
    async with bus.reader(TASKS, start="beginning", max_records=5) as reader:
        returned = 0
        while returned < 12:
            returned += len(await reader.batch(10))
            assert reader.lag() == {"tasks": 12 - returned}


async def test_a_reader_at_the_end_misses_nothing_written_after_its_start(bus: Bus, producer: Producer) -> None:
    await (await producer.send(TASKS, "t0", task(0)))
    for number in range(1, 6):
        async with bus.reader(TASKS, start="end") as reader:
            await producer.send(TASKS, f"t{number}", task(number))
            assert ids_of(await take(reader, 1)) == [f"t{number}"]


async def test_a_reader_starts_where_it_is_told(bus: Bus, producer: Producer) -> None:
    for number in range(10):
        left = ExplorerLeft(explorer="e", incarnation=f"i{number}")
        await (await producer.send(EXPLORER_EVENTS, "e", left, partition=3))
    async with bus.reader(EXPLORER_EVENTS, start={("explorer-events", 3): 7}) as reader:
        assert [record_of(record).incarnation for record in await take(reader, 3)] == ["i7", "i8", "i9"]
        assert reader.positions["explorer-events", 3] == 10
    async with bus.reader(EXPLORER_EVENTS, partitions=[2], start="beginning") as reader:
        assert [record async for record in reader.replay()] == []
    async with bus.reader(EXPLORER_EVENTS, start={("explorer-events", 3): 99}) as reader:
        with pytest.raises(RecordGoneError, match="retention has deleted it"):
            await take(reader, 1)


async def test_a_lane_is_read_alone(bus: Bus, producer: Producer) -> None:
    lane = lane_partition("explorer-1")
    async with bus.reader(ROLLOUTS, partitions=[lane], start="end", expect=()) as reader:
        for name in (f"explorer-{n}" for n in range(20)):
            await producer.send_raw(ROLLOUTS, name, name.encode(), partition=lane_partition(name))
        await producer.flush()
        found = await take(reader, 2)
        found += await reader.batch(0.5)
        assert [record.key for record in found] == ["explorer-1", f"explorer-{1 + ROLLOUTS.partitions}"]


async def test_undecodable_records_do_not_stop_a_reader_and_become_dead_letters(
    bus: Bus, producer: Producer, reader: Reader
) -> None:
    await producer.send(TASKS, "t0", task(0), partition=0)
    for key, value in ((b"\xffkey", b"\xc1"), (b"j", b'{"task_id": "j"}'), (b"n", None)):
        await producer.send_raw(TASKS, key, value, partition=0, headers=[("from", b"outside")])
    await producer.send_raw(TASKS, "json", b'{"task_id": "j1", "workflow": "math", "prompt": "x"}', partition=0)
    await producer.send(TASKS, "t1", task(1), partition=0)
    found = await take(reader, 6)
    bad = [record for record in found if isinstance(record.record, Undecodable)]
    assert [record.record.task_id for record in found if isinstance(record.record, Task)] == ["t0", "j1", "t1"]
    assert [record.offset for record in bad] == [1, 2, 3]
    for record in bad:
        await (await producer.send_dead_letter(record, record.record.reason, record.record.detail))
    async with bus.reader(DEAD_LETTERS, start="beginning") as dead:
        letters = await take(dead, 3)
    assert [(letter.raw_key, letter.raw, letter.is_null) for letter in letters] == [
        (b"\xffkey", b"\xc1", False),
        (b"j", b'{"task_id": "j"}', False),
        (b"n", b"", True),
    ]
    for letter, record in zip(letters, bad, strict=True):
        told = [header(letter.headers, name) for name in ("from", "dlq.reason", "dlq.topic", "dlq.offset")]
        assert told == ["outside", record.record.reason, "tasks", str(record.offset)]


def poisoned(batch: BatchBuilder) -> BatchBuilder:
    """The batch with the header ``POISON`` renamed to bytes that are no text, as a client in C can send it."""
    build = batch._build

    def rebuild() -> bytes:
        raw = bytearray(build()).replace(b"POISON", b"\xff\xfe\xff\xfe\xff\xfe")
        raw[17:21] = struct.pack(">I", calc_crc32c(bytes(raw[21:])))
        return bytes(raw)

    batch._build = rebuild
    return batch


async def test_a_record_that_stops_the_client_library_does_not_stop_a_reader(
    settings: KafkaSettings, bus: Bus, producer: Producer
) -> None:
    async with (
        bus.reader(TASKS, start="beginning", expect=()) as reader,
        AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers) as outsider,
    ):
        for send in [await producer.send_raw(TASKS, "a", b"before", partition=n % 3) for n in range(30)]:
            await send
        batch = outsider.create_batch()
        for value, headers in ((b"good", []), (b"bad", [("POISON", b"")]), (b"behind it", [])):
            batch.append(key=b"k", value=value, timestamp=None, headers=headers)
        sent = await outsider.send_batch(poisoned(batch), TASKS.full_name(settings.namespace), partition=1)
        base = (await sent).offset
        for number in range(30):
            await producer.send_raw(TASKS, "a", b"after", partition=number % 3)
        lane = [record for record in await take(reader, 63) if record.partition == 1]
    assert [record.offset for record in lane] == list(range(23)), "in order, none twice"
    assert [record.raw for record in lane[:11]] == [b"before"] * 10 + [b"good"]
    assert [record.raw for record in lane[12:]] == [b"behind it"] + [b"after"] * 10, "it costs itself alone"
    assert isinstance(lane[11].record, Undecodable)
    assert lane[11].record.reason == "bad_header"
    await (await producer.send_dead_letter(lane[11], lane[11].record.reason, lane[11].record.detail))
    found = await bus.fetch(TASKS, [Position(partition=1, offset=base + n) for n in (0, 2)], expect=())
    assert [record.record for record in found] == [b"good", b"behind it"]
    assert [met.place for met in bus.passed_over()] == [f"tasks/1@{base + 1}"]
    assert bus.passed_over() == [], "once"


async def test_large_records_pass_and_larger_ones_are_refused(bus: Bus, producer: Producer) -> None:
    large = group("large", samples=64, tokens=60_000)
    async with bus.reader(EXPERIENCES, start="beginning") as reader:
        groups = [group("g", 2, 100), large, group("h", 2, 100)]
        sent = [await producer.send(EXPERIENCES, "k", one, partition=1) for one in groups]
        positions = [await delivery for delivery in sent]
        found = await take(reader, 3)
    assert ids_of(found) == ["g", "large", "h"]
    assert len(found[1].raw) > 25 << 20
    assert np.array_equal(record_of(found[1]).tokens, large.tokens)
    (fetched,) = await bus.fetch(EXPERIENCES, [positions[1]])
    assert np.array_equal(record_of(fetched).logprobs, large.logprobs)
    with pytest.raises(RecordTooLargeError, match="over the limit of topic batches"):
        await producer.send_raw(BATCHES, "k", bytes(BATCHES.max_message_bytes))
    await (await producer.send(EXPERIENCES, "k", group("after", 2, 100)))


def test_cancelled_waits_lose_nothing(empty: KafkaSettings) -> None:
    """On the event loop of the services."""

    async def scenario() -> None:
        async with (
            with_topics(empty, [TASKS]) as bus,
            bus.producer() as producer,
            bus.reader(TASKS, start="end", max_records=7) as reader,
        ):
            sending = asyncio.create_task(send_slowly(producer))
            found: list[Received[Any]] = []
            async with asyncio.timeout(LIMIT_S):
                while len(found) < 300:
                    waiting = asyncio.create_task(reader.batch(5.0))
                    done, _ = await asyncio.wait([waiting], timeout=0.003)
                    if not done:
                        waiting.cancel()
                        await asyncio.wait([waiting])
                    if not waiting.cancelled():
                        found += waiting.result()
            await sending
            assert sorted(int(task_id[1:]) for task_id in ids_of(found)) == list(range(300))

    async def send_slowly(producer: Producer) -> None:
        for number in range(300):
            await producer.send(TASKS, f"t{number}", task(number))
            await asyncio.sleep(0.001)

    uvloop.run(scenario())


async def test_who_looks_whether_a_record_has_come_takes_none(bus: Bus, producer: Producer) -> None:
    async with bus.reader(TASKS, start="end", max_records=2) as reader:
        waiting = reader.arrival()
        assert waiting is not None
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        assert reader.arrival() is waiting
        for number in range(3):
            await (await producer.send(TASKS, "t", task(number)))
        for _ in range(2):
            await arrival(reader)
        assert ids_of(await take(reader, 3)) == ["t0", "t1", "t2"]


async def test_manifests_are_read_by_position(bus: Bus, producer: Producer) -> None:
    positions = [await send for send in [await producer.send(TASKS, f"t{n}", task(n)) for n in range(2000)]]
    order = np.random.default_rng(0).permutation(2000).tolist()
    wanted = [*order[:500], order[0]]
    assert ids_of(await bus.fetch(TASKS, [positions[number] for number in wanted])) == [f"t{n}" for n in wanted]
    assert await bus.fetch(TASKS, []) == []

    big = [await producer.send_raw(EXPERIENCES, "k", bytes(300_000), partition=0) for _ in range(60)]
    ends = [await send for send in big]
    sparse = await bus.fetch(EXPERIENCES, [ends[59], ends[0], ends[30]], expect=())
    assert [record.offset for record in sparse] == [59, 0, 30]
    assert len(sparse[0].raw) == 300_000

    for partition, told in ((0, r"tasks/0@99999 does not exist: records end at"), (8, "there is no 8")):
        with pytest.raises(RecordGoneError, match=told):
            await bus.fetch(TASKS, [Position(partition=partition, offset=99_999)])
    assert len(await bus.fetch(TASKS, positions[:3])) == 3, "an error leaves it usable"


async def test_what_retention_has_deleted_is_told(bus: Bus, producer: Producer) -> None:
    for number in range(10):
        await (await producer.send(TASKS, "t", task(number), partition=2))
    await bus.delete_before({("tasks", 2): 6})
    assert (await bus.beginning_offsets(TASKS))[2] == 6
    assert ids_of(await bus.fetch(TASKS, [Position(partition=2, offset=6)])) == ["t6"]
    with pytest.raises(RecordGoneError, match=r"tasks/2@5 is gone: retention has deleted everything before"):
        await bus.fetch(TASKS, [Position(partition=2, offset=7), Position(partition=2, offset=5)])
