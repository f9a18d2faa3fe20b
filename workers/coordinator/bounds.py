"""Where the log of experiences begins and ends, for manifests that are about to be written.

The end, of all that is written, is asked for each time: what an explorer has written a moment ago lies just before it.
The beginning is asked for once in ``BEGIN_S``: it moves when brokers delete, and what goes after a batch has ended is
as gone as what went a second before.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from schemas.topics import EXPERIENCES
from trinity_bus.bus import Bus

BEGIN_S = 1.0

type Offsets = dict[int, int]  # by partition


class ExperienceBounds:
    def __init__(self, bus: Bus, clock: Callable[[], float]) -> None:
        self._bus = bus
        self._clock = clock
        self._begins: Offsets = {}
        self._asked_at = float("-inf")

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[asyncio.Task[tuple[Offsets, Offsets]]]:
        """Ask, and provide the answer as a task, so that something else can be done meanwhile."""
        asking = asyncio.create_task(self.now(), name="bounds of experiences")
        try:
            yield asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def now(self) -> tuple[Offsets, Offsets]:
        """Return where each partition begins, and where it ends; BusError where the broker does not answer."""
        now = self._clock()
        if now < self._asked_at + BEGIN_S:
            return self._begins, await self._bus.written_ends(EXPERIENCES)
        self._begins, ends = await asyncio.gather(
            self._bus.beginning_offsets(EXPERIENCES), self._bus.written_ends(EXPERIENCES)
        )
        self._asked_at = now
        return self._begins, ends
