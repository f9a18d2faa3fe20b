"""Answering over HTTP: what the services that do so share.

::

    listening --set up--> BOUND, ``host:port`` --left, however--> cleaned up: requests under way have ``shutdown_s``
                  '--the port cannot be had--> ConfigError, cleaned up
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from trinity_bus.errors import ConfigError
from trinity_bus.runtime.secrecy import same_secret

_IDLE_S: Final = 75.0
"""How long a connection is kept on which no whole head of a request comes."""


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, setting: str, shutdown_s: float
) -> AsyncIterator[str]:
    """Answer with an application while within. A client that goes away takes its request along.

    Args:
        app: What answers.
        host: Where it listens.
        port: There; 0 for any that is free.
        setting: Names host and port in an error.
        shutdown_s: How long requests may still take at the end; 0 would be without end.

    Yields:
        ``host:port``, as clients on this machine reach it.

    Raises:
        ConfigError: The port cannot be listened on.
    """
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=shutdown_s, keepalive_timeout=_IDLE_S
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(f"{setting}, {host}:{port}, cannot be listened on: {error}") from None
        named = f"[{host}]" if ":" in host else host
        yield f"{named}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def shows_key(request: web.Request, key: str) -> bool:
    """Whether a request has this key as its bearer token."""
    return same_secret(request.headers.get("Authorization", ""), f"Bearer {key}")
