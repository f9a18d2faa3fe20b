"""A topic that grows below readers and producers that know it as it was."""

import asyncio
from collections import Counter

import pytest

from schemas.event import Position
from schemas.topics import RESULTS
from tests.support.fakes.mesh_records import task_result
from tests.support.mesh.records import record_of
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import RecordGoneError

pytestmark = pytest.mark.integration
LIMIT_S = 60.0
MORE = RESULTS.partitions + 4


@pytest.fixture(autouse=True)
def _moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients learn at once what takes them a minute."""
    monkeypatch.setattr("trinity_bus.bus.client.connection.METADATA_S", 0.2)
    monkeypatch.setattr("trinity_bus.bus.read.reader.METADATA_S", 0.2)
    monkeypatch.setattr("trinity_bus.bus.partitioning.SETTLE_S", 0.2)


async def test_what_is_written_while_a_topic_grows_is_read_once_by_all(settings: KafkaSettings) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        Bus(settings, client_id="test") as bus,
        bus.producer() as producer,
        bus.reader(RESULTS, start="end") as reader,
    ):
        await bus.end_offsets(RESULTS)
        read: Counter[str] = Counter()
        sent: dict[str, Position] = {}

        async def send() -> None:
            record = task_result(f"t{len(sent)}")
            sent[record.task_id] = await (await producer.send(RESULTS, record.task_id, record))

        async def take() -> None:
            for received in await reader.batch(0.05):
                read[record_of(received).task_id] += 1

        for _ in range(20):
            await send()
            await take()
        assert await bus.grow(RESULTS, MORE) == RESULTS.partitions
        while {place.partition for place in sent.values()} < set(range(MORE)):
            await send()
            await take()
        while len(read) < len(sent):
            await take()
        assert read == Counter(sent.keys())
        # Whoever asked before it grew finds all of it, and one that comes later reads it from its beginning.
        fetched = await bus.fetch(RESULTS, list(sent.values()))
        assert [record_of(received).task_id for received in fetched] == list(sent)
        assert (await bus.end_offsets(RESULTS)).keys() == set(range(MORE))
        with pytest.raises(RecordGoneError, match=f"has {MORE} partitions, there is no {MORE}"):
            await bus.fetch(RESULTS, [Position(partition=MORE, offset=0)])
        async with bus.reader(RESULTS, start="beginning") as late:
            again = Counter([record_of(received).task_id async for received in late.replay()])
        assert again == read
        sizes = await bus.sizes([RESULTS])
        assert {partition for _, partition in sizes} == set(range(MORE))
