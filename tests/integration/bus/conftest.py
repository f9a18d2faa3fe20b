"""A namespace of its own for each test, with its topics made."""

import pytest

from tests.support.mesh.mesh import unused
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings


@pytest.fixture
def empty(kafka: KafkaSettings) -> KafkaSettings:
    """A namespace without topics."""
    return unused(kafka)


@pytest.fixture
async def settings(empty: KafkaSettings) -> KafkaSettings:
    """A namespace with all topics."""
    async with Bus(empty, client_id="fixture") as bus:
        await bus.ensure_topics()
    return empty
