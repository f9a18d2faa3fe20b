"""Connections end with their client, at whatever request it is cancelled: while it starts, works or stops."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection

from schemas.topics import BATCHES, COORDINATOR_STATE
from trinity_bus.bus import Producer, Reader
from trinity_bus.bus.client.connection import administrator
from trinity_bus.bus.read.positions import PositionReader
from trinity_bus.config import KafkaSettings

pytestmark = pytest.mark.integration


class Watched:
    """All connections of this process, and what is done when the next requests are sent."""

    def __init__(self) -> None:
        self.connections: list[AIOKafkaConnection] = []
        self.sent = 0
        self.at: dict[int, Callable[[], object]] = {}

    def left_open(self) -> list[AIOKafkaConnection]:
        return [
            connection
            for connection in self.connections
            if connection.connected() or (connection._protocol and connection._protocol._transport)
        ]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    seen = Watched()
    make, send = AIOKafkaConnection.__init__, AIOKafkaConnection.send

    def noting(connection: AIOKafkaConnection, *args: Any, **options: Any) -> None:
        make(connection, *args, **options)
        seen.connections.append(connection)

    def counting(connection: AIOKafkaConnection, *args: Any, **options: Any) -> Any:
        seen.sent += 1
        seen.at.get(seen.sent, lambda: None)()
        return send(connection, *args, **options)

    monkeypatch.setattr(AIOKafkaConnection, "__init__", noting)
    monkeypatch.setattr(AIOKafkaConnection, "send", counting)
    yield seen
    assert seen.connections


async def reads(settings: KafkaSettings) -> None:
    async with Reader(settings, BATCHES, client_id="test") as reader:
        await reader.batch(0)


async def asks(settings: KafkaSettings) -> None:
    async with PositionReader(settings, client_id="test") as reader:
        await reader.offsets(BATCHES, "end")


async def writes(settings: KafkaSettings) -> None:
    async with Producer(settings, client_id="test") as producer:
        await (await producer.send_raw(COORDINATOR_STATE, "key", b"value"))


async def commits(settings: KafkaSettings) -> None:
    full_id = f"{settings.namespace}.test"
    async with Producer(settings, client_id="test", transactional_id=full_id) as producer, producer.transaction():
        await producer.send_raw(COORDINATOR_STATE, "key", b"value")


async def administers(settings: KafkaSettings) -> None:
    async with administrator(settings, "test") as admin:
        await admin.describe_cluster()


@pytest.mark.parametrize("use", [reads, asks, writes, commits, administers])
async def test_a_client_that_is_cancelled_at_any_of_its_requests_leaves_no_connection(
    settings: KafkaSettings, watched: Watched, use: Callable[[KafkaSettings], Awaitable[None]]
) -> None:
    for request in range(1, 100):
        watched.sent = 0
        using = asyncio.ensure_future(use(settings))
        watched.at = {request: using.cancel}
        await asyncio.wait([using])
        await asyncio.sleep(0)
        assert watched.left_open() == [], f"cancelled at request {request}"
        if not using.cancelled():
            using.result()
            break
    else:
        pytest.fail("a client that is never done")
    assert request > 3
