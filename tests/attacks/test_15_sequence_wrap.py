"""Attack 15, of it: a producer that has written 2^31 records to a partition.

Before: the client library numbered the next one -2^31, which brokers refuse, and the partition could not be written any
more by that producer. Now 0 follows, as in Kafka's own clients.
"""

import pytest
from aiokafka import TopicPartition

from schemas.topics import EXPLORER_EVENTS
from tests.support.mesh.mesh import unused, with_topics
from trinity_bus.bus import Producer
from trinity_bus.bus.client.internals import MAX_SEQUENCE
from trinity_bus.config import KafkaSettings

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("transactional", [False, True], ids=["idempotent", "transactional"])
@pytest.mark.parametrize("left", [0, 1, 2, 5])
async def test_numbers_begin_again_at_zero(kafka: KafkaSettings, transactional: bool, left: int) -> None:
    """The first record of a producer may have any number: brokers know nothing of it yet."""
    settings = unused(kafka).model_copy(update={"outage_s": 20.0})
    async with with_topics(settings, [EXPLORER_EVENTS]) as bus:
        async with bus.producer(transactional_id="numbers" if transactional else None) as producer:
            place = TopicPartition(EXPLORER_EVENTS.full_name(settings.namespace), 0)
            client = producer._running
            assert client is not None
            client._txn_manager._sequence_numbers[place] = MAX_SEQUENCE - left
            for batch in range(4):
                if transactional:
                    async with producer.transaction():
                        await write(producer, batch)
                else:
                    await write(producer, batch)
                    await producer.flush()
        async with bus.reader(EXPLORER_EVENTS, start="beginning") as reader:
            found = [received.raw async for received in reader.replay(written=True)]
    assert found == [f"{batch}/{record}".encode() for batch in range(4) for record in range(3)]


async def write(producer: Producer, batch: int) -> None:
    for record in range(3):
        await producer.send_raw(EXPLORER_EVENTS, "e", f"{batch}/{record}".encode(), partition=0)
