"""Closing a client's connections without waiting for brokers to say goodbye.

Over TLS, closing is a conversation: each side tells the other that nothing more will come, and the client library
waits for its end. Where an answer to a fetch is still under way, uvloop takes its limit of 30 seconds for that (its
issue 471), in which a coordinator could not even take over::

    OPEN --the client closes it: all that counts has been acknowledged--> CLOSING --answered--> CLOSED
                                                                             '--_LIMIT_S--> aborted --> CLOSED

Only what the client itself has closed is aborted, so records that are still to be sent lose nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection

_LIMIT_S: Final = 0.2


@contextlib.asynccontextmanager
async def bounded_shutdown(client: AIOKafkaClient) -> AsyncIterator[None]:
    """Within the block, in which a client is stopped, no connection takes much longer than ``_LIMIT_S`` to close.

    Args:
        client: What producers, consumers and administrators are built on.
    """
    watching = asyncio.create_task(_abort_closing(client))
    try:
        yield
    finally:
        watching.cancel()


async def close_admin(admin: AIOKafkaAdminClient) -> None:
    """Disconnect an administrator."""
    async with bounded_shutdown(admin._client):  # noqa: SLF001 - there is no other way to its connections
        await admin.close()


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


async def _abort_closing(client: AIOKafkaClient) -> None:
    known: set[AIOKafkaConnection] = set()
    while True:
        # One that is closed leaves the client's table at once.
        known |= set(client._conns.values())  # noqa: SLF001 - the library has no way to abort
        await asyncio.sleep(_LIMIT_S)
        for connection in known:
            transport = None if connection.connected() else connection._protocol._transport  # noqa: SLF001 - likewise
            if transport is not None:
                transport.abort()
