"""A namespace of its own for each test, with its topics made, and who reads and writes there."""

from collections.abc import AsyncIterator

import pytest

from tests.support.mesh.mesh import make_topics, unused
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import KafkaSettings


@pytest.fixture
def empty(kafka: KafkaSettings) -> KafkaSettings:
    """A namespace without topics."""
    return unused(kafka)


@pytest.fixture
async def settings(empty: KafkaSettings) -> KafkaSettings:
    """A namespace with all topics."""
    await make_topics(empty)
    return empty


@pytest.fixture
async def bus(settings: KafkaSettings) -> AsyncIterator[Bus]:
    async with Bus(settings, client_id="test") as bus:
        yield bus


@pytest.fixture
async def producer(bus: Bus) -> AsyncIterator[Producer]:
    async with bus.producer() as producer:
        yield producer


@pytest.fixture
async def transactional(bus: Bus) -> AsyncIterator[Producer]:
    async with bus.producer(transactional_id="coordinator") as producer:
        yield producer
