"""How records share batches, with the library's own queue and no broker: a fake sender takes batches from it."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaConnectionError
from aiokafka.producer.message_accumulator import BatchBuilder, MessageAccumulator, MessageBatch
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

from schemas.topics import EXPLORER_EVENTS
from trinity_bus.bus.write.delivery import Outgoing, Queued
from trinity_bus.bus.write.producer import Producer
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, SendError

PLACE = TopicPartition("test.explorer-events", 0)
SETTINGS = KafkaSettings(bootstrap_servers="a:1", namespace="test")
ROOM = 1000


class Cluster(ClusterMetadata):
    """One broker, which leads every partition."""

    def partitions_for_topic(self, topic: str) -> set[int]:
        del topic
        return {0}

    def leader_for_partition(self, partition: TopicPartition) -> int:
        del partition
        return 0


class QueueOnly:
    """Stands for the client library's producer: its queue is real, and what is in it goes nowhere by itself."""

    def __init__(self) -> None:
        self.client = self
        self.cluster = Cluster()
        self._message_accumulator = MessageAccumulator(self.cluster, ROOM, 0, 60.0)

    def create_batch(self) -> BatchBuilder:
        return self._message_accumulator.create_builder()

    async def send_batch(self, builder: BatchBuilder, topic: str, *, partition: int) -> Any:
        return await self._message_accumulator.add_batch(builder, TopicPartition(topic, partition), 60.0)

    def take(self) -> MessageBatch:
        """Take the oldest batch, as the task of the library's that sends: it is built a moment later."""
        nodes, _ = self._message_accumulator.drain_by_nodes(ignore_nodes=[])
        batch: MessageBatch = nodes[0][PLACE]
        return batch


def queue_of(client: Any) -> Queued:
    return Queued(lambda: client, SETTINGS)


async def add(to: Queued | Outgoing, *values: bytes) -> list[Any]:
    return [await to.add(EXPLORER_EVENTS, PLACE, (b"key", value, [])) for value in values]


async def test_records_share_a_batch_until_it_is_taken_and_none_is_put_into_it_then() -> None:
    client = QueueOnly()
    queued = queue_of(client)
    first = await add(queued, b"1", b"2", b"3")
    taken = client.take()
    # The batch has its sequence numbers now, for three records, and is not built yet.
    second = await add(queued, b"4", b"5")
    assert taken.record_count == 3
    taken.done(base_offset=7)
    client.take().done(base_offset=12)
    assert [(await placed).offset for placed in (*first, *second)] == [7, 8, 9, 12, 13]
    assert queued._newest[PLACE].builder is None, "what is durable is not kept"


async def test_whoever_finds_no_room_waits_in_turn_and_a_cancelled_one_loses_its_own_record_alone() -> None:
    client = QueueOnly()
    queued = queue_of(client)
    await add(queued, bytes(ROOM))
    waiting = [asyncio.create_task(add(queued, value)) for value in (b"1", b"2", b"3")]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    await asyncio.sleep(0)
    client.take().done(base_offset=0)
    (second,), (third,) = await asyncio.gather(*waiting[1:])
    rest = client.take()
    assert rest.record_count == 2
    rest.done(base_offset=1)
    assert [(await placed).offset for placed in (second, third)] == [1, 2]


@pytest.mark.parametrize("waits", [False, True])
async def test_everyone_is_told_of_a_batch_that_never_will_be_durable(waits: bool) -> None:
    client = QueueOnly()
    placed = await add(queue_of(client), b"1", b"2")
    told = [asyncio.ensure_future(one) for one in placed] if waits else []
    gone = asyncio.ensure_future(placed[0])
    await asyncio.sleep(0)
    gone.cancel()
    client.take().failure(KafkaConnectionError("no broker"))
    for one in told or placed:
        with pytest.raises(SendError, match="no broker"):
            await one


async def test_a_duplicate_of_which_the_broker_does_not_tell_where_it_is_has_no_position() -> None:
    client = QueueOnly()
    placed = await add(queue_of(client), b"1", b"2")
    client.take().done(base_offset=-1)
    for one in placed:
        with pytest.raises(SendError, match="the broker does not tell where"):
            await one


async def test_what_a_transaction_has_not_handed_over_at_its_end_never_will_be() -> None:
    client = QueueOnly()
    outgoing = Outgoing(client, SETTINGS)
    (placed,) = await add(outgoing, b"1")
    outgoing.forget()
    with pytest.raises(SendError, match="the transaction was aborted before it was sent"):
        await placed


async def test_a_record_that_comes_later_does_not_overtake_those_that_wait_for_room() -> None:
    client = QueueOnly()
    queued = queue_of(client)
    await add(queued, bytes(ROOM))
    # The first sends once more, as soon as there was room for it.
    waiting = [asyncio.create_task(add(queued, *values)) for values in ((b"1", b"late"), (b"2",), (b"3",))]
    await asyncio.sleep(0)
    client.take().done(base_offset=0)
    (first, late), (second,), (third,) = await asyncio.gather(*waiting)
    client.take().done(base_offset=1)
    assert [(await one).offset for one in (first, second, third, late)] == [1, 2, 3, 4]


async def test_records_that_are_sent_in_the_same_turn_of_the_loop_keep_their_order() -> None:
    client, producer = QueueOnly(), Producer(SETTINGS, client_id="c")
    producer._running = client
    sends = [producer.send_raw(EXPLORER_EVENTS, f"k{number}", b"", partition=0) for number in range(4)]
    placed = await asyncio.gather(*sends)
    client.take().done(base_offset=0)
    assert [(await one).offset for one in placed] == [0, 1, 2, 3]


async def test_a_close_tells_of_a_record_that_came_into_the_queue_too_late() -> None:
    class Closing(QueueOnly):
        async def stop(self) -> None:
            closing = asyncio.create_task(self._message_accumulator.close())
            await asyncio.sleep(0)
            self.take().done(base_offset=0)
            await closing

        def end(self) -> None:
            pass

    client, producer = Closing(), Producer(SETTINGS, client_id="c")
    producer._running = client
    full = await producer.send_raw(EXPLORER_EVENTS, "k", bytes(ROOM), partition=0)
    opening, behind = [asyncio.create_task(producer.send_raw(EXPLORER_EVENTS, "k", b"", partition=0)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(SendError, match="still waiting for room"):
        await producer.stop()
    assert (await full).offset == 0
    with pytest.raises(SendError, match="the producer was closed"):
        await (await opening)
    with pytest.raises(BusError, match="is stopped"):
        await behind


async def test_whoever_waits_for_a_batch_of_a_transaction_is_told_where_another_is_cancelled() -> None:
    client = QueueOnly()
    await add(queue_of(client), bytes(ROOM))
    first, second = [asyncio.ensure_future(one) for one in await add(Outgoing(client, SETTINGS), b"1", b"2")]
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(SendError, match="cancelled before it was sent"):
        await second
    assert first.cancelled()


async def test_a_position_that_is_kept_keeps_no_bytes() -> None:
    client = QueueOnly()
    (placed,) = await add(queue_of(client), bytes(ROOM))
    client.take().done(base_offset=0)
    await placed
    assert placed._batch.builder is None


async def test_a_broker_that_does_not_say_where_records_lie_is_an_error_of_their_sends() -> None:
    client = QueueOnly()
    waiting = [asyncio.ensure_future(one) for one in await add(queue_of(client), b"1", b"2")]
    await asyncio.sleep(0)
    client.take().done_noack()
    for one in waiting:
        with pytest.raises(SendError):
            await one


async def test_a_span_that_cannot_be_ended_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(NonRecordingSpan):
        def end(self, end_time: int | None = None) -> None:
            raise RuntimeError("no exporter")

    client = QueueOnly()
    (placed,) = await add(queue_of(client), b"1")
    placed.trace(Broken(INVALID_SPAN_CONTEXT))
    client.take().done(base_offset=3)
    assert (await placed).offset == 3
    assert "no exporter" in caplog.text
