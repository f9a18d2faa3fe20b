"""What must be known of the log before orders and manifests are written: lanes, and where experiences begin and end.

A lane is what some explorer says, and a record for a partition that there is not would never be written, nor would
anything behind it. So of one that is not known it is asked first, once in ``ASK_S``: ``rollouts`` may have grown. Where
it is not there, or no broker says, orders go to the lane of the explorer's name: they come to nothing, and cost that
explorer alone.

The end of the experiences, of all that is written, is asked for each time: what an explorer has written a moment ago
lies just before it. The beginning is asked for once in ``BEGIN_S``: it moves when brokers delete, and what goes after a
batch has ended is as gone as what went a second before.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from schemas.topics import EXPERIENCES, ROLLOUTS
from trinity_bus.bus import Bus, lane_partition
from trinity_bus.bus.read.offsets import HasEnds
from trinity_bus.errors import BusError

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


log = logging.getLogger("workers.coordinator")

ASK_S: Final = 1.0


class Lanes:
    def __init__(self, bus: HasEnds, clock: Callable[[], float]) -> None:
        self._bus = bus
        self._clock = clock
        self._known = ROLLOUTS.partitions
        self._asked_at = float("-inf")

    async def of(self, explorer: str, told: int | None) -> int:
        """Return the lane of an explorer. ``told``: the one that it has told of."""
        if told is not None and told >= self._known:
            await self._ask()
        return told if told is not None and told < self._known else lane_partition(explorer)

    async def _ask(self) -> None:
        now = self._clock()
        if now < self._asked_at + ASK_S:
            return
        self._asked_at = now
        try:
            self._known = len(await self._bus.end_offsets(ROLLOUTS))
        except BusError as error:
            log.warning("how many lanes there are is not known: %s", error)
