"""Time limits that pause while this process does not run: stopped by a signal, thrashing, or its machine asleep.

Whoever was stopped for minutes has not waited for minutes: what it waits for was mostly stopped as well, or has
answered meanwhile. So limits count the seconds in which this process ran::

    look --a second or less later--> look      all of it counts
      '----longer, for whatever reason--> look  a second of it counts

A thread looks twice a second, and so does whoever asks. A process that stood still for five minutes has spent a second
of each limit at most. One that gets no processor for most of the time waits longer than a clock on the wall says;
every limit still ends, as long as the process runs at all.

Nothing else in the program measures a limit: ``tests/unit/project/test_time_limits.py`` looks for it. How long
something took is measured with ``time.perf_counter``.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Self

LOOK_S = 1.0  # most that counts between two looks
_EVERY_S = LOOK_S / 2


class SteadyClock:
    """Turns readings of any clock into a steady one, ``now``, from 0: it never runs backward and never jumps. Pure."""

    def __init__(self, longest_step_s: float) -> None:
        self.now = 0.0
        self._longest_step_s = longest_step_s
        self._reading: float | None = None

    def advance(self, reading: float) -> float:
        """Take a reading, in seconds on any scale; return the counted time."""
        if self._reading is not None:
            self.now += min(max(reading - self._reading, 0.0), self._longest_step_s)
        self._reading = reading
        return self.now


class _OfThisProcess:
    # One clock, and a thread that looks at it; a process forked from this one begins again.

    def __init__(self) -> None:
        # Kept, for simulations that replace it would move the limits of everything else in their process.
        self._read = time.monotonic
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        self._clock = SteadyClock(LOOK_S)
        # As long as nothing stands still, both say the same.
        self._clock.now = self._read()
        # Signal handlers and finalizers may look amid a look.
        self._lock = threading.RLock()
        self._is_watched = False

    def look(self) -> float:
        with self._lock:
            if not self._is_watched:
                threading.Thread(target=self._watch, name="awake", daemon=True).start()
                # Where there is no room for a thread now, there may be at the next look.
                self._is_watched = True
            return self._clock.advance(self._read())

    def _watch(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            self.look()


_PROCESS = _OfThisProcess()


def now() -> float:
    """Return the seconds that this process has been awake for, from a beginning of no meaning. Any thread may ask."""
    return _PROCESS.look()


class Timeout:
    """What ``asyncio.Timeout`` is, by this module's clock; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._until = 0.0
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    def expired(self) -> bool:
        return self._timeout.expired()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._until - now()
        if left > 0:
            self._timer = loop.call_later(left, self._look)
        else:
            self._timeout.reschedule(loop.time())

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        if self._seconds is not None:
            self._until = now() + self._seconds
            self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)


def timeout(seconds: float | None) -> Timeout:
    """Raise TimeoutError in an ``async with`` after so many seconds, as ``asyncio.timeout`` does; None: no limit."""
    return Timeout(seconds)


async def wait[F: asyncio.Future[Any]](
    waited_for: Collection[F], seconds: float, *, return_when: str = asyncio.ALL_COMPLETED
) -> tuple[set[F], set[F]]:
    """Wait for tasks or futures as ``asyncio.wait`` does, but at most so long; what is waited for goes on."""
    until = now() + seconds
    while True:
        done, pending = await asyncio.wait(waited_for, timeout=max(0.0, until - now()), return_when=return_when)
        if not pending or (done and return_when == asyncio.FIRST_COMPLETED) or now() >= until:
            return done, pending


def wait_in_thread(wait: Callable[[float], object], seconds: float) -> bool:
    """Wait in a thread, for a condition, an event or another thread. Return whether it has come in time.

    ``wait`` waits for so many seconds at most, and returns whether it has come.
    """
    until = now() + seconds
    while not wait(max(0.0, until - now())):
        if now() >= until:
            return False
    return True


def join(thread: threading.Thread, seconds: float) -> None:
    """Wait for the end of a thread, as ``Thread.join`` does, but by this module's clock."""

    def ended(limit_s: float) -> bool:
        thread.join(limit_s)
        return not thread.is_alive()

    wait_in_thread(ended, seconds)


class Alarm:
    """Calls a function after so many seconds, from a thread of its own: what ``threading.Timer`` is, by this clock."""

    def __init__(self, seconds: float, function: Callable[[], object]) -> None:
        self._off = threading.Event()
        threading.Thread(target=self._ring, args=(seconds, function), name="alarm", daemon=True).start()

    def cancel(self) -> None:
        self._off.set()

    def _ring(self, seconds: float, function: Callable[[], object]) -> None:
        if not wait_in_thread(self._off.wait, seconds):
            function()
