"""Answering over HTTP: what the services that do so share.

::

    listening --set up--> BOUND, ``host:port`` --left, however--> cleaned up: requests under way have ``shutdown_s``
                  '--the port cannot be had--> ConfigError, cleaned up

    a large request --its client has room, and all together--> read, made into tokens --> its room is free
                       '--no room--> waits, as long as its caller lets it

A request's body takes many times its memory while it is made into tokens. So large ones share room, of which a client
has at most half; of that the keys of its sessions have at most half, and each at most a quarter.
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Final

from aiohttp import web

from trinity_bus.errors import ConfigError
from trinity_bus.runtime.secrecy import same_secret

SMALL: Final = 64 << 10  # bytes of a request that needs no room
_IDLE_S: Final = 75.0  # how long a connection is kept on which no whole head of a request comes


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, setting: str, shutdown_s: float
) -> AsyncIterator[str]:
    """Answer with an application while within; yield ``host:port``, as clients on this machine reach it.

    A client that goes away takes its request along. ``setting`` names host and port in a ConfigError, where they cannot
    be listened on; ``shutdown_s``: how long requests may still take at the end, 0 would be without end.
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


class Room:
    """For large requests; ``most``: bytes of all of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[tuple[str, str | None]] = Counter()
        self._freed = asyncio.Event()

    @property
    def taken(self) -> int:
        return self._taken.total()

    async def take(self, request: web.Request, owner: str, largest: int, *, session: str | None = None) -> ExitStack:
        """Wait for room for a request that was not read; of one that tells no size, for the ``largest`` of all.

        Others can have it when what is returned is closed. ``session``: whose key it shows, if not its owner's.
        """
        length = None if "Content-Encoding" in request.headers else request.content_length
        size = min(largest if length is None else length, largest, self._most // (2 if session is None else 8))
        if size <= SMALL and length is not None:
            size = 0
        while size and not self._has(size, owner, session):
            self._freed.clear()
            await self._freed.wait()
        self._taken[owner, session] += size
        taken = ExitStack()
        taken.callback(self._give_back, (owner, session), size)
        return taken

    def _has(self, size: int, owner: str, session: str | None) -> bool:
        own = {key: taken for (name, key), taken in self._taken.items() if name == owner}
        taken_of = [(self.taken, 1), (sum(own.values()), 2)]
        if session is not None:
            taken_of += [(sum(own.values()) - own.get(None, 0), 4), (own.get(session, 0), 8)]
        return all(taken + size <= self._most // part for taken, part in taken_of)

    def _give_back(self, who: tuple[str, str | None], size: int) -> None:
        self._taken[who] -= size
        if not self._taken[who]:
            del self._taken[who]
        self._freed.set()


async def read_body(request: web.Request, most: int) -> bytes:
    """Return what a request says, of ``most`` bytes; unlike ``request.read``, nothing keeps it but the caller.

    HTTPRequestEntityTooLarge: it has more bytes.
    """
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > most:
            raise web.HTTPRequestEntityTooLarge(most, len(body))
    return bytes(body)


async def in_thread[*A, R](call: Callable[[*A], R], *given: *A) -> R:
    """Return what a call returns that a thread makes; a request whose client has gone ends no sooner than the call."""
    # A thread cannot be cancelled: its request continues to hold the locks and the room that the call needs.
    running = asyncio.ensure_future(asyncio.to_thread(call, *given))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            # Looked at: nobody is there to be told.
            running.exception()
        raise


def shows_key(request: web.Request, key: str) -> bool:
    """Whether a request has this key as its bearer token."""
    return same_secret(request.headers.get("Authorization", ""), f"Bearer {key}")


def session_key(key: str, session: str) -> str:
    """Return what opens the model in one session of a gateway, and nothing else of the client whose key it is made of.

    For an agent beside programs that a model has written: with the client's own key they could reward themselves.
    """
    name = f"session {session}".encode(errors="surrogatepass")
    return f"session-{hmac.digest(key.encode(errors='surrogateescape'), name, 'sha256').hex()}"
