"""A client of the library's that has ended: what it was opening is closed, and it opens nothing any more."""

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from tests.support.mesh.certificates import certificate
from trinity_bus.bus.client.internals import AIOKafkaConnection, LogClient

FIRST_ANSWER = struct.pack(">iihi", 10, 1, 0, 0)
"""To the first request, which is for the versions that the broker speaks: none."""
LEFT_S = 20
"""Less than the 30 s that asyncio waits for a goodbye."""


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


class RudeBroker:
    """Stands for a broker with TLS that takes one connection, when it may, and never answers a goodbye."""

    def __init__(self, folder: Path) -> None:
        made, key = certificate(folder, "broker")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(made, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self.taken, self.go_on, self.left = threading.Event(), threading.Event(), threading.Event()
        host, port = self._listener.getsockname()
        security: dict[str, Any] = {
            "security_protocol": "SSL",
            "ssl_context": ssl.create_default_context(cafile=str(made)),
        }
        self.client = LogClient(bootstrap_servers=f"{host}:{port}", **security)
        self.connection: AIOKafkaConnection | None = AIOKafkaConnection(host, port, **security)
        self._thread.start()

    def _serve(self) -> None:
        plain, _ = self._listener.accept()
        self.taken.set()
        self.go_on.wait()
        with self._context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(1024)
            connection.sendall(FIRST_ANSWER)
            with contextlib.suppress(ConnectionResetError):
                # Below TLS, which would answer.
                while socket.socket.recv(connection, 1024):
                    pass
        self.left.set()

    async def close(self) -> None:
        """Its thread ends with the connection, which this loop closes."""
        await asyncio.to_thread(self._thread.join)
        self._listener.close()


@pytest.fixture
async def rude(tmp_path: Path) -> AsyncIterator[RudeBroker]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    broker = RudeBroker(tmp_path)
    yield broker
    await broker.close()


async def test_a_connection_that_comes_about_after_the_end_is_broken_off(rude: RudeBroker) -> None:
    opening = asyncio.create_task(rude.client.connect(rude.connection))
    assert await asyncio.to_thread(rude.taken.wait, LEFT_S)
    rude.client.end()
    rude.go_on.set()
    with pytest.raises(KafkaConnectionError, match="has been stopped"):
        await opening
    assert await asyncio.to_thread(rude.left.wait, LEFT_S), "it waits for a goodbye"


async def test_what_the_library_has_closed_and_forgotten_is_broken_off_at_the_end(rude: RudeBroker) -> None:
    rude.go_on.set()
    await rude.client.connect(rude.connection)
    assert rude.connection is not None
    rude.connection.close()
    rude.connection = None
    gc.collect()
    rude.client.end()
    assert await asyncio.to_thread(rude.left.wait, LEFT_S), "it waits for a goodbye"
