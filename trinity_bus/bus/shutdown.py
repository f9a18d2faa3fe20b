"""Ending a client's connections: all of them, and without waiting for brokers to say goodbye.

The client library loses a connection when it is cancelled amid its first request, and opens new ones for whoever still
waits for an answer while it is stopped. So every client here knows what it has opened, and opens nothing once stopped.

Over TLS, closing is a conversation: each side tells the other that nothing more will come, and the client library
waits for its end. Where an answer to a fetch is still under way, uvloop takes its limit of 30 seconds for that (its
issue 471), in which a coordinator could not even take over::

    OPEN --the client closes it: all that counts has been acknowledged--> CLOSING --answered--> CLOSED
      |                                                                      '--_LIMIT_S--> aborted --> CLOSED
      '--the client has been stopped, or whoever stopped it was cancelled--> aborted --> CLOSED

Until then only what the client itself has closed is aborted, so records that are still to be sent lose nothing.
"""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Final

from aiokafka import client as client_module
from aiokafka.admin import client as admin_module
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer import consumer as consumer_module
from aiokafka.errors import KafkaConnectionError
from aiokafka.producer import producer as producer_module

_LIMIT_S: Final = 0.2
_opener: ContextVar["Client"] = ContextVar("opener")
"""Whose connection is being opened: the library does not tell the function that opens it."""


class Client(AIOKafkaClient):  # type: ignore[misc]  # the library has no types
    """What producers, consumers and administrators are built on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opened: weakref.WeakSet[AIOKafkaConnection] = weakref.WeakSet()
        self._is_stopped = False

    async def bootstrap(self) -> None:
        """Connect for the first time."""
        with self._opening():
            await super().bootstrap()

    async def _get_conn(self, *args: Any, **options: Any) -> AIOKafkaConnection | None:
        with self._opening():
            return await super()._get_conn(*args, **options)

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        token = _opener.set(self)
        try:
            yield
        finally:
            _opener.reset(token)

    async def connect(self, connection: AIOKafkaConnection) -> None:
        """Open a connection, to be closed with this client.

        Raises:
            KafkaConnectionError: This client has been stopped.
        """
        self._opened.add(connection)
        if not self._is_stopped:
            await connection.connect()
        if self._is_stopped:
            connection.close()
            raise KafkaConnectionError("the client has been stopped")

    def abort_closing(self) -> None:
        """Close at once what is being closed."""
        for connection in self._opened:
            protocol = connection._protocol  # noqa: SLF001 - the library has no way to abort
            if protocol is not None and protocol._transport is not None and not connection.connected():  # noqa: SLF001
                protocol._transport.abort()  # noqa: SLF001

    def end(self) -> None:
        """Close at once whatever is open, and open nothing any more."""
        self._is_stopped = True
        if self._sync_task is not None:
            self._sync_task.cancel()
        for connection in self._opened:
            connection.close()
        self.abort_closing()


async def _create_conn(host: str, port: int, **options: Any) -> AIOKafkaConnection:
    connection = AIOKafkaConnection(host, port, **options)
    await _opener.get().connect(connection)
    return connection


client_module.create_conn = _create_conn
admin_module.AIOKafkaClient = consumer_module.AIOKafkaClient = producer_module.AIOKafkaClient = Client


@contextlib.asynccontextmanager
async def bounded_shutdown(client: Client) -> AsyncIterator[None]:
    """Within the block, in which a client is stopped, no connection takes much longer than ``_LIMIT_S`` to close.

    However it ends, none is open after it.
    """
    watching = asyncio.create_task(_abort_closing(client))
    try:
        yield
    finally:
        watching.cancel()
        client.end()


async def to_the_end(ending: Coroutine[Any, Any, None]) -> None:
    """Run what ends soon to its end, even when this task is cancelled meanwhile."""
    task = asyncio.ensure_future(ending)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()


async def close_connection(connection: AIOKafkaConnection) -> None:
    """Disconnect a single connection, which need not have come about.

    Without the wait, the event loop may end before it is closed, and Python complains of it whenever it collects it.
    """
    closed = connection.close()
    if connection._protocol is None:  # noqa: SLF001 - nothing else tells that it never was connected
        return
    await asyncio.wait([closed], timeout=_LIMIT_S)
    transport = connection._protocol._transport  # noqa: SLF001 - likewise
    if not closed.done() and transport is not None:
        transport.abort()
        await asyncio.wait([closed])


async def _abort_closing(client: Client) -> None:
    while True:
        await asyncio.sleep(_LIMIT_S)
        client.abort_closing()
