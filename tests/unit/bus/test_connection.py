"""The first connection to a broker: none is left half closed, whatever the other side does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka.conn import AIOKafkaConnection

from trinity_bus.bus.connection import check_reachable
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError

type Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answers_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A frame of four bytes, which are not the number of any request."""
    await reader.read(1)
    writer.write(b"\0\0\0\4\xff\xff\xff\xff")
    await reader.read()
    writer.close()


async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize("handler", [answers_nonsense, hangs_up, says_nothing])
async def test_a_connection_that_is_of_no_use_is_closed_when_that_is_told(
    monkeypatch: pytest.MonkeyPatch, handler: Handler
) -> None:
    made: list[AIOKafkaConnection] = []

    class Seen(AIOKafkaConnection):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("trinity_bus.bus.connection.AIOKafkaConnection", Seen)

    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_s=0.2)
        with pytest.raises(BrokerUnreachableError, match=f"127.0.0.1:{port}"):
            await check_reachable(kafka, "test")
        (connection,) = made
        assert connection._closed_fut.done()
