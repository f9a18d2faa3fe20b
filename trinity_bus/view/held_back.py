"""What a mesh has still to read: how far the coordinator is behind, and transactions that somebody has left open."""

import asyncio
from collections.abc import Collection
from typing import Final

from schemas.topic import Topic
from schemas.topics import COORDINATOR_INPUTS, EXPERIENCES
from trinity_bus import awake
from trinity_bus.bus import Bus
from trinity_bus.bus.read.stalls import HELD_S, Stalls, Standing

TOPICS: Final = (*COORDINATOR_INPUTS, EXPERIENCES)  # What coordinator and trainer wait for
_LOOK_S: Final = 0.25


class HeldBack:
    """Looks, again and again, whether records lie behind a transaction: one look cannot tell how long it is open."""

    def __init__(self, bus: Bus, present: Collection[Topic] = TOPICS) -> None:
        self._bus = bus
        self._topics = [topic for topic in TOPICS if topic in present]
        self._stalls = Stalls()

    async def look(self) -> list[str]:
        """Return a line for each partition of which it is known that records wait in it."""
        standings = []
        for topic in self._topics:
            stable, written = await self._bus.end_offsets(topic), await self._bus.written_ends(topic)
            standings += [Standing(topic.name, p, end, end, written.get(p)) for p, end in stable.items()]
        return self._stalls.look(awake.now(), standings, ())

    async def certain(self) -> list[str]:
        """Look until it is known of each transaction that is open; that takes some seconds where one is."""
        # Where one transaction follows the other there is always one that has just begun.
        until = awake.now() + 2 * HELD_S
        lines = await self.look()
        while self._stalls.doubtful and awake.now() <= until:
            await asyncio.sleep(_LOOK_S)
            lines = await self.look()
        return lines


async def coordinator_lag(bus: Bus, present: Collection[Topic] = COORDINATOR_INPUTS) -> dict[str, int]:
    """Return how many offsets of its inputs the coordinator has still to read, by topic name."""
    committed = await bus.committed_offsets(f"{bus.settings.namespace}.coordinator", COORDINATOR_INPUTS)
    result = dict.fromkeys((topic.name for topic in COORDINATOR_INPUTS), 0)
    for topic in set(COORDINATOR_INPUTS).intersection(present):
        first, end = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
        result[topic.name] = sum(end[p] - committed.get((topic.name, p), first[p]) for p in end)
    return result
