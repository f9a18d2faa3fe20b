"""A fake log in memory, and a fake coordinator that works on it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus, FakeLog


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def bus(log: FakeLog) -> FakeBus:
    return FakeBus(log)


@pytest.fixture
async def coordinator(bus: FakeBus) -> AsyncIterator[FakeCoordinator]:
    async with FakeCoordinator(bus).running() as coordinator:
        yield coordinator
