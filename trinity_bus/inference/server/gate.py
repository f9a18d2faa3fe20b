"""Requests and changes of weights take turns, so that every response is of one version.

::

    OPEN --shut--> DRAINING: new requests wait --the last of those under way ends--> SHUT --left--> OPEN
                       '--too late, cancelled--> OPEN, with the weights as they were
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trinity_bus import awake


class DrainGate:
    """Counts requests under way, and holds back new ones while it is shut. One shuts it at a time."""

    def __init__(self) -> None:
        self._running = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Wait until it is open; it is not shut within."""
        while not self._open.is_set():
            await self._open.wait()
        self._running += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._empty.set()

    @asynccontextmanager
    async def shut(self, limit_s: float) -> AsyncIterator[None]:
        """Wait until no request is under way; none begins within. TimeoutError: some still are after ``limit_s``."""
        self._open.clear()
        try:
            async with awake.timeout(limit_s):
                await self._empty.wait()
            yield
        finally:
            self._open.set()
