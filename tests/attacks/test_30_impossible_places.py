"""Places in the log that nobody can have written to, told by a neighbour in a heartbeat."""

import asyncio
import uuid

import pytest

from schemas import Position
from schemas.record import MAX_COUNT
from schemas.topics import TURNS
from tests.support.fakes.mesh_records import dispatch
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from workers.explorer.turns import TurnKeeper

pytestmark = pytest.mark.integration

LIMIT_S = 30.0


async def test_turns_where_none_can_lie_cost_an_explorer_nothing(kafka: KafkaSettings) -> None:
    settings = kafka.model_copy(update={"namespace": f"test-{uuid.uuid4().hex[:12]}", "outage_s": 5.0})
    places = [
        Position(partition=TURNS.partitions, offset=0),
        Position(partition=MAX_COUNT, offset=0),
        Position(partition=0, offset=1),
        Position(partition=0, offset=MAX_COUNT),
    ]
    async with Bus(settings, client_id="test") as bus:
        await bus.ensure_topics()
        async with bus.producer() as producer:
            keeper = TurnKeeper(bus, producer, on_first=lambda: None)
            async with asyncio.timeout(LIMIT_S):
                for place in places:
                    assert await keeper.done(dispatch(turns=place)) == [], place
