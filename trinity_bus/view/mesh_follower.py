"""Reading a mesh into its state, in the background, and what it has still to read: the only I/O of this package.

::

    topics --TopicFollower--> MeshState --changed()--> whoever waits for something to hold of it

A broker that is away, and records that retention has deleted, are the follower's to outlive: see
:mod:`trinity_bus.bus.read.follower`. A record that cannot be read is the coordinator's to complain of; it is passed
over. What ends the following is raised by the next look at the state.

Time is the log's: the last record says what time it is for the brokers, a steady clock how long ago it was read. This
machine's own time of day is asked only at the beginning, where no record is new, and believed only until one comes.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from schemas.topic import Topic
from schemas.topics import BATCHES, COORDINATOR_INPUTS, EVENTS, EXPERIENCES, MODEL_VERSIONS
from trinity_bus import awake
from trinity_bus.bus import Bus, Received, Start, TopicFollower
from trinity_bus.bus.read.offsets import HELD_S, Stalls, Standing, recent
from trinity_bus.view.state import MeshState

RECENT_EVENTS: Final = 500  # How many of the newest events of each partition a view begins with
_BEATS_S: Final = 2.0  # Within this time somebody of a mesh that works is heard


class MeshFollower:
    """Keeps a state up to date. An async context manager: at entry it takes all that the log holds from ``start`` on.

    Without ``expect`` all types of the topics are decoded. ``gather_s``: how long records may gather at the broker, see
    :meth:`trinity_bus.bus.Bus.reader`.
    """

    def __init__(
        self,
        bus: Bus,
        *topics: Topic,
        start: Start,
        state: MeshState | None = None,
        expect: Sequence[type] | None = None,
        on_end: Callable[[BaseException], None] | None = None,
        clock: Callable[[], float] = awake.now,
        gather_s: float | None = None,
    ) -> None:
        self._state = MeshState() if state is None else state
        self._on_end = on_end
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()
        self._clock = clock
        self._has_beats = not set(EVENTS).isdisjoint(topics)
        # When the last record was written, by the clock of the log, and when it was read, by ours
        self._told: tuple[float, float] | None = None
        self._follower = TopicFollower(
            lambda position: bus.reader(*topics, start=position, expect=expect, gather_s=gather_s),
            self._take,
            self._ended,
            start,
        )

    @property
    def state(self) -> MeshState:
        """As far as it was read, at the time that it is now. Raises what has ended the following."""
        if self._failure is not None:
            raise self._failure
        if self._told is not None:
            written_at, read_at = self._told
            self._state.tick(written_at + self._clock() - read_at)
        return self._state

    async def __aenter__(self) -> Self:
        await self._follower.start()
        try:
            await self._follower.caught_up()
            await self._learn_the_time()
        except BaseException:
            await self._follower.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._follower.stop()

    async def keeps_up(self) -> bool:
        return await self._follower.keeps_up()

    async def changed(self, timeout_s: float) -> None:
        """Wait until something is read, or the time is up: silence is news too. Raises what has ended the following."""
        self._changed.clear()
        try:
            async with awake.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        if self._failure is not None:
            raise self._failure

    async def _learn_the_time(self) -> None:
        # Set the clock by the next record, where what is there looks old: the mesh or our time of day has gone
        newest, today = self._state.now, time.time()
        self._told = None
        if self._has_beats and newest and abs(today - newest) > self._state.alive_s:
            until = self._clock() + _BEATS_S
            while self._told is None and (left := until - self._clock()) > 0:
                await self.changed(left)
        if self._told is None:
            self._told = max(newest, today), self._clock()

    def _take(self, received: Received[Any]) -> None:
        self._state.apply(received.record, received.timestamp_ms / 1000)
        if received.timestamp_ms:
            self._told = received.timestamp_ms / 1000, self._clock()
        self._changed.set()

    def _ended(self, error: BaseException) -> None:
        self._failure = error
        self._changed.set()
        if self._on_end is not None:
            self._on_end(error)


@asynccontextmanager
async def follow(
    bus: Bus,
    *,
    topics: Sequence[Topic] = (BATCHES, MODEL_VERSIONS, *EVENTS),
    whole: bool = False,
    state: MeshState | None = None,
    clock: Callable[[], float] = awake.now,
    gather_s: float | None = None,
) -> AsyncIterator[MeshFollower]:
    """Provide a follower whose state holds what the log holds at entry: all events if ``whole``, else the newest."""
    start: Start = "beginning" if whole else await recent(bus, set(EVENTS).intersection(topics), RECENT_EVENTS)
    async with MeshFollower(bus, *topics, start=start, state=state, clock=clock, gather_s=gather_s) as follower:
        yield follower


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
