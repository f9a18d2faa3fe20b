"""A broker that goes away: for a while, and for good."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.task import Task
from schemas.topic import Topic
from schemas.topics import BATCHES, TASKS
from tests.support.mesh.mesh import own_broker, with_topics
from tests.support.mesh.records import record_of
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError, BusError, SendError

pytestmark = pytest.mark.integration
COUNT = 300
LIMIT_S = 120.0


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """One of its own, that has done everything once that it does slowly the first time: limits can be short."""
    async with EmbeddedBroker(own_broker(tmp_path / "broker")) as broker:
        async with (
            with_topics(broker.kafka_settings()) as bus,
            bus.producer(transactional_id="warm-up") as producer,
            producer.transaction(),
        ):
            await producer.send_raw(BATCHES, "k", b"warm-up")
        yield broker


async def stop(broker: EmbeddedBroker) -> None:
    await asyncio.to_thread(broker.stop)


async def start_again(broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    await asyncio.to_thread(broker.start)
    assert broker.bootstrap_servers == servers


async def test_a_restart_loses_nothing_and_doubles_nothing(broker: EmbeddedBroker) -> None:
    async with (
        Bus(broker.kafka_settings(KafkaSettings(outage_s=LIMIT_S)), client_id="test") as bus,
        bus.producer() as producer,
        bus.reader(TASKS, start="beginning") as reader,
    ):
        halfway = asyncio.Event()

        async def send() -> None:
            for number in range(COUNT):
                task = Task(task_id=f"t{number}", workflow="math", prompt="x")
                await (await producer.send(TASKS, "one key", task))
                if number == COUNT // 3:
                    halfway.set()

        sending = asyncio.create_task(send())
        await asyncio.wait_for(halfway.wait(), LIMIT_S)
        await stop(broker)
        await start_again(broker)
        found: list[str] = []
        async with asyncio.timeout(LIMIT_S):
            await sending
            while len(found) < COUNT:
                found += [record_of(record).task_id for record in await reader.batch(1.0)]
        assert found == [f"t{number}" for number in range(COUNT)]
        assert await reader.batch(0.3) == []


async def test_what_cannot_be_made_durable_is_told_within_the_limit(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity_bus.bus.write.producer.CLOSE_S", 2.0)
    settings = broker.kafka_settings(KafkaSettings(request_timeout_s=2.0))
    async with Bus(settings, client_id="test") as bus:
        producer, reader = bus.producer(), bus.reader(TASKS, start="end")
        await producer.start()
        await (await producer.send_raw(TASKS, "k", b"before"))
        await reader.start()
        await stop(broker)
        lost = await producer.send_raw(TASKS, "k", b"v")
        assert await reader.batch(0.2) == [], "a reader waits"
        started = time.monotonic()
        with pytest.raises(SendError, match=r"not all records are durable after 2 s; is the broker running\?"):
            await producer.stop()
        with pytest.raises(SendError):
            await lost
        await reader.stop()
    assert time.monotonic() - started < LIMIT_S / 2
    with pytest.raises(BrokerUnreachableError, match="connection refused"):
        await Bus(settings, client_id="test").start()


async def test_what_waits_for_longer_than_an_outage_may_last_fails_and_its_producer_with_it(
    broker: EmbeddedBroker,
) -> None:
    async with Bus(broker.kafka_settings(KafkaSettings(outage_s=3.0)), client_id="test") as bus:
        producer, transactional = bus.producer(), bus.producer(transactional_id="role")
        await producer.start()
        await (await producer.send_raw(TASKS, "k", b"before"))
        await transactional.start()
        async with transactional.transaction():
            await transactional.send_raw(BATCHES, "k", b"before")
        await stop(broker)
        lost = await producer.send_raw(TASKS, "k", b"v")
        with pytest.raises(SendError, match=r"not durable after 3 s \(TRINITY_BUS_KAFKA__OUTAGE_S\)"):
            await lost
        with pytest.raises(BrokerUnreachableError, match="not durable after 3 s"):
            await producer.send_raw(TASKS, "k", b"v")
        with pytest.raises(BusError):
            async with transactional.transaction():
                await transactional.send_raw(BATCHES, "k", b"never")
        with pytest.raises(BusError):
            async with transactional.transaction():
                pass
        await producer.stop()
        await transactional.stop()


async def test_positions_that_wait_for_longer_than_an_outage_may_last_fail_too(broker: EmbeddedBroker) -> None:
    """All records of their transaction are durable, and its end is not asked for yet."""
    async with Bus(broker.kafka_settings(KafkaSettings(outage_s=3.0)), client_id="test") as bus:
        producer = bus.producer(transactional_id="role")
        await producer.start()

        async def write() -> None:
            async with producer.transaction():
                await (await producer.send_raw(BATCHES, "k", b"v"))
                await producer.send_offsets({("tasks", 0): 1}, "role")
                await stop(broker)
                await producer.send_offsets({("tasks", 0): 2}, "role")

        with pytest.raises(BrokerUnreachableError, match=r"commit offsets of role: .*not durable after 3 s"):
            await asyncio.wait_for(write(), LIMIT_S)
        await producer.stop()


@pytest.mark.parametrize("transactional_id", [None, "role"])
async def test_a_topic_that_is_written_first_in_an_outage_is_waited_for(
    broker: EmbeddedBroker, transactional_id: str | None
) -> None:
    """Nothing is known of a topic to which nothing was sent yet: whoever asks for it must not take that for its end."""
    settings = broker.kafka_settings(KafkaSettings(request_timeout_s=1.0))
    async with Bus(settings, client_id="test") as bus:
        # One that knows of other topics alone, as it is after its first record.
        async with bus.producer(transactional_id=transactional_id) as producer:

            async def send(topic: Topic) -> None:
                async with producer.transaction() if transactional_id else contextlib.nullcontext():
                    await producer.send_raw(topic, "k", b"v")
                await producer.flush()

            await send(BATCHES)
            await stop(broker)
            sending = asyncio.create_task(send(TASKS))
            # Twice as long as the client library alone would wait.
            done, _ = await asyncio.wait([sending], timeout=2 * settings.request_timeout_s)
            assert not done, sending.exception()
            await start_again(broker)
            await asyncio.wait_for(sending, LIMIT_S)
            with pytest.raises(BusError, match="there is no such topic: a service creates it when it starts"):
                await send(replace(TASKS, name="nobodys"))
        async with bus.reader(TASKS, start="beginning", expect=()) as reader:
            assert [received.raw for received in await reader.batch(LIMIT_S)] == [b"v"]


async def test_one_who_is_told_to_stop_in_an_outage_does_not_wait_for_its_end(broker: EmbeddedBroker) -> None:
    async with Bus(broker.kafka_settings(KafkaSettings(outage_s=3600.0)), client_id="test") as bus:
        producer = bus.producer(transactional_id="role")
        await producer.start()
        await stop(broker)
        queued = asyncio.Event()

        async def write() -> None:
            async with producer.transaction():
                await producer.send_raw(BATCHES, "k", b"never")
                queued.set()

        writing = asyncio.create_task(write())
        await asyncio.wait_for(queued.wait(), LIMIT_S)
        writing.cancel()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(asyncio.CancelledError):
                await writing
            await producer.stop()
