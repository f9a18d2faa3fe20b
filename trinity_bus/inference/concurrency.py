"""How much an explorer has in flight, by what its engine has room for. Pure: time is an argument.

::

    limit = most --congested--> limit * BACK_OFF, once what is in flight has come down to it
                 --room, and all of it used--> limit + a step, at most once in RAISE_S

Additive increase, multiplicative decrease (Chiu and Jain, "Analysis of the increase and decrease algorithms for
congestion avoidance in computer networks", 1989): several explorers that share a backlog come to fair shares, and one
alone stays near what its engine can do. What is not in flight stays on the log, where any explorer may be handed it.

In flight is all that the engine is asked for: attempts, and requests over HTTP. A limit of one kind alone would be cut
again and again for what the other kind does. Attempts are handed out by the limit; requests over HTTP come by
themselves, and ``bears`` says whether one more is taken: not while the engine is congested and has its limit of both,
but for as many as it keeps of attempts in any case, so that neither kind starves the other.

An engine is congested when it has preempted requests, whose keys and values it computes anew; when its cache is nearly
full and requests wait; or when for QUEUE_S as many wait as it computes. Attempts that run are never stopped for it.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Final

BACK_OFF: Final = 0.8
NEARLY_FULL: Final = 0.95  # share of the cache
ROOM: Final = 0.85  # share of the cache below which there is room for more
QUEUE_S: Final = 2.0  # A batch begins with all its requests at once: a queue counts that lasts
RAISE_S: Final = 1.0
_STEPS: Final = 32  # in so many the limit goes from nothing to the most


class Steps:
    """An engine's steps since its start, in each of which a response gets one token at most. One may wait for them."""

    def __init__(self) -> None:
        self.count = 0.0
        self._due = math.inf
        self._is_due = asyncio.Event()

    def add(self, steps: float) -> None:
        self.count += steps
        if self.count >= self._due:
            self._due = math.inf
            self._is_due.set()

    async def reach(self, count: float) -> None:
        """Return once there were so many."""
        if self.count < count:
            self._is_due.clear()
            self._due = count
            await self._is_due.wait()


@dataclass(frozen=True, slots=True)
class EngineLoad:
    kv_usage: float  # share of the cache's blocks that requests hold, 0 to 1
    running: int  # requests that it computes
    waiting: int  # requests that wait for it
    preempted: int  # requests that it has taken the cache from, since its start
    version: int  # Served: taking over another empties the cache under those that run, which is no congestion


class ConcurrencyController:
    """Finds how much an engine bears at once: ``most`` at the beginning, and ``least`` of each kind at least."""

    def __init__(self, most: int, least: int) -> None:
        self.limit = self._most = most  # how much it bears
        self._congested = False  # at the last look
        self._in_flight = 0
        self._least = min(least, most)
        self._seen: EngineLoad | None = None
        self._forgives_until = 0.0
        self._queued_since: float | None = None
        self._raised_at = 0.0
        self._backing_off = False

    def observe(self, load: EngineLoad, in_flight: int, now: float) -> int:
        """Take note of an engine's load at a steady time in seconds, and return the limit from now on."""
        preempted = self._preempted(load, now)
        crowded = load.kv_usage >= NEARLY_FULL and load.waiting > 0
        congested = self._congested = preempted or crowded or self._queues(load, now)
        self._in_flight = in_flight
        if in_flight <= self.limit:
            # What was decided last is what is so.
            self._backing_off = False
        if congested:
            self._raised_at = now
            if not self._backing_off:
                self.limit = max(self._least, min(self.limit - 1, int(min(self.limit, in_flight) * BACK_OFF)))
                self._backing_off = in_flight > self.limit
        elif (
            load.kv_usage < ROOM and load.waiting == 0 and in_flight >= self.limit and now - self._raised_at >= RAISE_S
        ):
            self.limit = min(self._most, self.limit + max(1, self._most // _STEPS))
            self._raised_at = now
        return self.limit

    def bears(self, requests: int) -> bool:
        """Whether one more request over HTTP is taken beside so many."""
        return not self._congested or requests < self._least or self._in_flight < self.limit

    def _preempted(self, load: EngineLoad, now: float) -> bool:
        seen, self._seen = self._seen, load
        if seen is None:
            return False
        if seen.version != load.version:
            # What was preempted by that is told as it goes on.
            self._forgives_until = now + QUEUE_S
        return load.preempted > seen.preempted and now >= self._forgives_until

    def _queues(self, load: EngineLoad, now: float) -> bool:
        if load.waiting <= load.running:
            self._queued_since = None
            return False
        if self._queued_since is None:
            self._queued_since = now
        return now - self._queued_since >= QUEUE_S
