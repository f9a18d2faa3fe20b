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
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

from trinity_bus.bus.client.internals import AIOKafkaConnection, LogClient, abort_transport, was_connected

_LIMIT_S: Final = 0.2


@contextlib.asynccontextmanager
async def bounded_shutdown(client: LogClient) -> AsyncIterator[None]:
    """Within the block, in which a client is stopped, no connection takes much longer than ``_LIMIT_S`` to close."""
    # However it ends, none is open after it.
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
    """Disconnect a single connection, which need not have come about."""
    # Without the wait, the event loop may end before it is closed, and Python complains of it whenever it collects it.
    closed = connection.close()
    if not was_connected(connection):
        return
    await asyncio.wait([closed], timeout=_LIMIT_S)
    if not closed.done() and abort_transport(connection):
        await asyncio.wait([closed])


async def _abort_closing(client: LogClient) -> None:
    while True:
        await asyncio.sleep(_LIMIT_S)
        client.abort_closing()
