"""In which partition of ``rollouts`` an explorer's orders lie, for orders that are about to be written.

A lane is what some explorer says, and a record for a partition that there is not would never be written, nor would
anything behind it. So of one that is not known it is asked first, once in ``ASK_S``: ``rollouts`` may have grown. Where
it is not there, or no broker says, orders go to the lane of the explorer's name: they come to nothing, and cost that
explorer alone.
"""

import logging
from collections.abc import Callable
from typing import Final

from schemas.topics import ROLLOUTS
from trinity_bus.bus import lane_partition
from trinity_bus.bus.read.offsets import HasEnds
from trinity_bus.errors import BusError

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
