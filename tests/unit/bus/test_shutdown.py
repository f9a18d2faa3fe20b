"""A client of the library's that has ended: what it was opening is closed, and it opens nothing any more."""

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError

from trinity_bus.bus.internals import LogClient


class SilentBroker:
    """Stands for a broker that takes connections and never answers; counts them."""

    def __init__(self) -> None:
        self.asked, self.left = asyncio.Event(), asyncio.Event()
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.read(1)
        self.asked.set()
        await reader.read()
        self.left.set()
        writer.close()


async def test_what_is_being_opened_when_it_ends_is_closed_and_nothing_is_opened_after() -> None:
    broker = SilentBroker()
    async with await asyncio.start_server(broker.serve, "127.0.0.1", 0) as server:
        client = LogClient(bootstrap_servers=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        starting = asyncio.create_task(client.bootstrap())
        await broker.asked.wait()
        client.end()
        await broker.left.wait()
        for start in (starting, client.bootstrap()):
            with pytest.raises(KafkaConnectionError):
                await start
        assert broker.connections == 1
