"""Reading a mesh into a view: the only I/O of this package, through the topics as any client has it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from schemas.topics import BATCHES, COORDINATOR_INPUTS, EVENTS, MODEL_VERSIONS
from trinity_bus.bus import Bus, Reader, Received
from trinity_bus.bus.offsets import recent
from workers.watch.state import MeshView

RECENT_EVENTS: Final = 500
"""How many of the newest events of each partition a view begins with."""


class Follower:
    """Keeps a ``MeshView`` up to date. Made by ``follow``."""

    def __init__(self, reader: Reader) -> None:
        self.view = MeshView()
        self._reader = reader

    async def catch_up(self) -> None:
        """Take everything that the log holds now, in the order of its times."""
        self._apply(sorted([received async for received in self._reader.replay()], key=lambda r: r.timestamp_ms))

    async def update(self, timeout_s: float) -> Sequence[Received[object]]:
        """Take what is new.

        Args:
            timeout_s: How long to wait for the first record.

        Returns:
            What was read; nothing if nothing came.
        """
        records = await self._reader.batch(timeout_s)
        self._apply(records)
        return records

    def _apply(self, records: Sequence[Received[object]]) -> None:
        # A record that cannot be read is the coordinator's to complain of; a view passes over it.
        for received in records:
            self.view.apply(received.record, received.timestamp_ms / 1000)


@asynccontextmanager
async def follow_batches(bus: Bus) -> AsyncIterator[Follower]:
    """Provide a follower whose view has every batch that the log has kept, and nothing else.

    Args:
        bus: Connected; the topic exists.
    """
    async with bus.reader(BATCHES, start="beginning") as reader:
        follower = Follower(reader)
        await follower.catch_up()
        yield follower


@asynccontextmanager
async def follow(bus: Bus, *, whole: bool = False) -> AsyncIterator[Follower]:
    """Provide a follower whose view holds what the log holds at entry.

    Args:
        bus: Connected; the topics exist.
        whole: Whether to read every event that the log has kept, or the newest few of each partition.
    """
    start: dict[tuple[str, int], int] = {}
    if not whole:
        start = await recent(bus, EVENTS, RECENT_EVENTS)
    async with bus.reader(BATCHES, MODEL_VERSIONS, *EVENTS, start=start) as reader:
        follower = Follower(reader)
        await follower.catch_up()
        yield follower


async def lag(bus: Bus) -> Mapping[str, int]:
    """How many offsets of its inputs the coordinator has still to read. Topic name to offsets."""
    committed = await bus.committed_offsets(f"{bus.settings.namespace}.coordinator", COORDINATOR_INPUTS)
    result = {}
    for topic in COORDINATOR_INPUTS:
        first, end = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
        result[topic.name] = sum(end[p] - committed.get((topic.name, p), first[p]) for p in end)
    return result
