"""Transactions on a real broker: all or nothing, one writer, and what a killed writer leaves: nothing."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Awaitable
from dataclasses import replace

import pytest
import uvloop

from schemas.event import Position
from schemas.topic import Topic
from schemas.topics import BATCHES, COORDINATOR_STATE, EXPLORER_EVENTS, ROLLOUTS
from tests.support.mesh.records import take
from trinity_bus.bus import Bus, Producer, TopicFollower
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, ProducerFencedError, RecordGoneError, RecordTooLargeError, SendError

pytestmark = pytest.mark.integration
GROUP = "group"
SEEN_S = 60.0


async def everything(bus: Bus, *topics: Topic) -> list[bytes]:
    async with bus.reader(*topics, start="beginning", expect=()) as reader:
        return [record.raw async for record in reader.replay()]


async def check(bus: Bus, expected: list[bytes], *topics: Topic) -> None:
    """All that is committed, soon: a commit is answered a moment before readers see what it commits."""
    found: list[bytes] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SEEN_S):
            while (found := await everything(bus, *topics)) != expected:  # noqa: ASYNC110 - others see it a moment later
                await asyncio.sleep(0.02)
    assert found == expected


async def check_positions(bus: Bus, expected: dict[tuple[str, int], int]) -> None:
    """All that is committed of the group, likewise soon."""
    found: dict[tuple[str, int], int] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SEEN_S):
            while (found := await bus.committed_offsets(GROUP, [EXPLORER_EVENTS])) != expected:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.02)
    assert found == expected


async def write(producer: Producer, *values: bytes) -> list[Awaitable[Position]]:
    """To the topic ``batches``, in one transaction."""
    sent: list[Awaitable[Position]] = []
    async with producer.transaction():
        sent += [await producer.send_raw(BATCHES, "b", value) for value in values]
    return sent


async def test_who_wants_what_is_written_waits_for_transactions_that_are_open(
    bus: Bus, transactional: Producer
) -> None:
    handled: dict[bool, list[bytes]] = {False: [], True: []}
    async with contextlib.AsyncExitStack() as stack:
        followers = {
            written: TopicFollower(
                lambda start: bus.reader(BATCHES, start=start, expect=()),
                lambda received, taken=taken: taken.append(received.raw),  # type: ignore[misc] # bound now
                lambda _: None,
                written=written,
            )
            for written, taken in handled.items()
        }
        for follower in followers.values():
            await follower.start()
            stack.push_async_callback(follower.stop)
        async with transactional.transaction():
            await (await transactional.send_raw(BATCHES, "b", b"one"))
            waiting = asyncio.create_task(followers[True].caught_up())
            for _ in range(3):
                await followers[False].caught_up()
            assert (handled, waiting.done()) == ({False: [], True: []}, False)
        await waiting
        assert handled[True] == [b"one"]


async def test_outputs_changelog_and_offsets_commit_together(bus: Bus, transactional: Producer) -> None:
    producer = transactional

    async def fail() -> None:
        async with producer.transaction():
            await producer.send_raw(BATCHES, "b", b"aborted")
            await producer.send_offsets({("explorer-events", 3): 99}, GROUP)
            raise ValueError("no")

    async with bus.reader(BATCHES, start="beginning", expect=()) as reader:
        assert await bus.committed_offsets(GROUP, [EXPLORER_EVENTS]) == {}
        async with producer.transaction():
            first = await producer.send_raw(BATCHES, "b", b"one")
            await producer.send_raw(COORDINATOR_STATE, "b", b"state")
            await producer.send_offsets({("explorer-events", 3): 17}, GROUP)
            assert await reader.batch(0.3) == [], "not before it commits"
        (seen,) = await take(reader, 1)
    assert seen.raw == b"one"
    assert (await first).offset == seen.offset
    await check_positions(bus, {("explorer-events", 3): 17})
    with pytest.raises(ValueError, match="no"):
        await fail()
    with pytest.raises(RecordTooLargeError):
        await write(producer, b"aborted too", bytes(BATCHES.max_message_bytes))
    (last,) = await write(producer, b"two")
    await write(producer)
    await check(bus, [b"one", b"two"], BATCHES)
    assert await everything(bus, COORDINATOR_STATE) == [b"state"]
    assert await bus.committed_offsets(GROUP, [EXPLORER_EVENTS]) == {("explorer-events", 3): 17}

    # Offsets: one, marker, aborted, marker, two, marker. What was "aborted too" never left this process.
    assert (await last).offset == 4
    assert [record.raw for record in await bus.fetch(BATCHES, [await last, await first], expect=())] == [b"two", b"one"]
    for hole in (1, 2, 3, 5):
        with pytest.raises(RecordGoneError, match=f"batches/0@{hole} holds no record"):
            await bus.fetch(BATCHES, [Position(partition=0, offset=hole)])


async def test_partitions_that_are_announced_may_be_written_or_not(bus: Bus, transactional: Producer) -> None:
    producer = transactional
    with pytest.raises(BusError, match="no transaction is open"):
        producer.announce(BATCHES)
    async with producer.transaction():
        await producer.send_raw(COORDINATOR_STATE, "b", b"one")
        producer.announce(BATCHES)
        await asyncio.sleep(0)
        await producer.send_raw(BATCHES, "b", b"two")
    async with producer.transaction():
        producer.announce(BATCHES)

    async def fail() -> None:
        async with producer.transaction():
            producer.announce(BATCHES)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()
    await write(producer, b"three")
    await check(bus, [b"two", b"three"], BATCHES)
    assert await everything(bus, COORDINATOR_STATE) == [b"one"]


async def test_sends_need_a_transaction_and_one_follows_the_other(bus: Bus, transactional: Producer) -> None:
    with pytest.raises(BusError, match="not in transaction"):
        await transactional.send_raw(BATCHES, "b", b"outside")
    await asyncio.gather(*(write(transactional, b"%d" % number, b"%d" % number) for number in range(5)))
    await check(bus, [b"%d" % (number // 2) for number in range(10)], BATCHES)


async def test_a_record_that_the_broker_refuses_aborts_everything(
    bus: Bus, producer: Producer, transactional: Producer
) -> None:
    small = replace(BATCHES, name="small", max_message_bytes=10_000)
    lying = replace(small, max_message_bytes=1 << 20)
    await bus.ensure_topics([small])
    with pytest.raises(RecordTooLargeError, match=r"send to .*small"):
        await (await producer.send_raw(lying, "b", bytes(20_000)))

    async def write_both() -> None:
        async with transactional.transaction():
            await transactional.send_raw(BATCHES, "b", b"good")
            await transactional.send_raw(lying, "b", bytes(20_000))

    with pytest.raises(RecordTooLargeError):
        await write_both()
    await write(transactional, b"next")
    await check(bus, [b"next"], BATCHES, small)


async def test_cancelled_between_commits_it_is_all_or_nothing(bus: Bus, transactional: Producer) -> None:
    async def write_all(mark: bytes) -> None:
        async with transactional.transaction():
            for topic in (BATCHES, COORDINATOR_STATE):
                await transactional.send_raw(topic, "b", mark)
            await transactional.send_offsets({("explorer-events", 0): 1}, GROUP)

    for delay in range(30):
        task = asyncio.create_task(write_all(b"%d" % delay))
        await asyncio.sleep(delay / 2000)
        task.cancel()
        await asyncio.wait([task])
    await write(transactional, b"end")
    # Only what the last one commits may be seen a moment later.
    await check(bus, [*await everything(bus, COORDINATOR_STATE), b"end"], BATCHES)


async def test_a_zombie_is_fenced(bus: Bus) -> None:
    zombie = bus.producer(transactional_id="coordinator")
    await zombie.start()
    await write(zombie, b"old")
    entered, fenced = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        async with zombie.transaction():
            await (await zombie.send_raw(BATCHES, "b", b"half done"))
            entered.set()
            await fenced.wait()
            await zombie.send_raw(ROLLOUTS, "e", b"zombie")

    hanging = asyncio.create_task(hang())
    await entered.wait()
    async with bus.producer(transactional_id="coordinator") as successor:
        assert await everything(bus, BATCHES) == [b"old"], "its start aborts what the other left open"
        fenced.set()
        with pytest.raises(ProducerFencedError, match="another process has started"):
            await hanging
        with pytest.raises(ProducerFencedError, match="begin a transaction of"):
            await write(zombie)
        await write(successor, b"new")
    await zombie.stop()
    await check(bus, [b"old", b"new"], BATCHES, ROLLOUTS)


KILLED = """
import asyncio, sys
from schemas.topics import BATCHES, COORDINATOR_STATE
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings

async def main():
    settings = KafkaSettings.model_validate_json(sys.argv[1])
    async with Bus(settings, client_id="victim") as bus, bus.producer(transactional_id="coordinator") as producer:
        async with producer.transaction():
            await producer.send_raw(BATCHES, "b", b"committed")
        async with producer.transaction():
            for number in range(100):
                await (await producer.send_raw(BATCHES, "b", b"uncommitted"))
            await producer.send_raw(COORDINATOR_STATE, "b", b"uncommitted")
            await producer.send_offsets({("explorer-events", 0): 5}, "group")
            print("durable, not committed", flush=True)
            await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_a_killed_writer_leaves_nothing_visible(settings: KafkaSettings, bus: Bus) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, settings.model_dump_json()], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"durable, not committed\n"
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert await everything(bus, BATCHES, COORDINATOR_STATE) == [b"committed"]
    async with bus.producer(transactional_id="coordinator") as successor:
        assert await bus.committed_offsets("group", [EXPLORER_EVENTS]) == {}
        await write(successor, b"next")
    await check(bus, [b"committed", b"next"], BATCHES, COORDINATOR_STATE)


async def test_positions_are_known_within_a_transaction_and_not_without_it(bus: Bus, transactional: Producer) -> None:
    async with transactional.transaction():
        sent = [await transactional.send_raw(BATCHES, "b", bytes([number])) for number in range(3)]
        assert [(await position).offset for position in sent] == [0, 1, 2]
        sent = [await transactional.send_raw(BATCHES, "b", bytes([number])) for number in range(3, 5)]
        again = [await position for position in sent]
    assert [position.offset for position in again] == [3, 4]
    assert again == [await position for position in sent], "as often as one likes"
    await check(bus, [bytes([number]) for number in range(5)], BATCHES)
    kept: list[Awaitable[Position]] = []

    async def fail() -> None:
        async with transactional.transaction():
            kept.append(await transactional.send_raw(BATCHES, "b", b"aborted"))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()
    with pytest.raises(SendError, match="aborted before it was sent"):
        await kept[0]


def test_many_entries_of_a_changelog_are_part_of_the_transaction(settings: KafkaSettings) -> None:
    """On the event loop of the services."""
    # More than one batch of the client.
    entries: list[tuple[str, bytes | None]] = [(f"key-{i}", bytes([i % 256]) * 4000) for i in range(500)]
    too_large = bytes(COORDINATOR_STATE.max_message_bytes)

    async def send_too_much(producer: Producer) -> None:
        async with producer.transaction():
            await producer.send_all(COORDINATOR_STATE, [("a", b"aborted"), ("b", too_large)], partition=0)

    async def scenario() -> None:
        async with Bus(settings, client_id="test") as bus, bus.producer(transactional_id="coordinator") as producer:
            with pytest.raises(BusError, match="need an open transaction"):
                await producer.send_all(COORDINATOR_STATE, entries, partition=0)
            async with producer.transaction():
                await producer.send_raw(BATCHES, "b", b"one")
                await producer.send_all(COORDINATOR_STATE, [*entries, ("gone", None)], partition=0)
                await producer.send_all(COORDINATOR_STATE, [], partition=0)
            with pytest.raises(RecordTooLargeError):
                await send_too_much(producer)
            expected = [*entries, ("gone", None)]
            async with bus.reader(COORDINATOR_STATE, start="beginning", expect=()) as reader:
                found: list[tuple[str | None, bytes | None]] = []
                async with asyncio.timeout(SEEN_S):
                    while len(found) < len(expected):
                        found += [(r.key, None if r.is_null else r.raw) for r in await reader.batch(1.0)]
            assert found == expected

    uvloop.run(scenario())
