"""How records share batches, with the library's own queue and no broker: a fake sender takes batches from it."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaConnectionError
from aiokafka.producer.message_accumulator import BatchBuilder, MessageAccumulator, MessageBatch

from schemas.topics import EXPLORER_EVENTS
from trinity_bus.bus.write.delivery import Outgoing, Queued
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import SendError

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
    await asyncio.sleep(0)
    assert queued._newest == {}, "what is durable is not kept"


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


async def test_what_a_transaction_has_not_handed_over_at_its_end_never_will_be() -> None:
    client = QueueOnly()
    outgoing = Outgoing(client, SETTINGS)
    (placed,) = await add(outgoing, b"1")
    outgoing.forget()
    with pytest.raises(SendError, match="the transaction was aborted before it was sent"):
        await placed
