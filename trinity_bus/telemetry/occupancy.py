"""Where the time of a number of like units goes: the slots of an explorer, the one engine of a trainer.

::

    IDLE --unit("training")--> TRAINING --move("publishing")--> PUBLISHING --the block ends--> IDLE

Each unit is in one state at a time, and the seconds that each state has been occupied are summed up: ten slots that are
idle for a second are ten seconds. As an ever rising counter this loses nothing between two readings, where a gauge that
is read every few seconds would show one moment of them; the rate of a state over the rate of all is its share.

There is nothing to fail: a block that is left by an exception is left.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Occupancy:
    """Seconds by state.

    Args:
        idle: The state of a unit that does nothing.
        units: How many there are. More may be busy for a moment; then none is idle.
        clock: Seconds, steady.
    """

    def __init__(self, idle: str, units: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        self._idle = idle
        self._clock = clock
        self._busy: dict[str, int] = {}
        self._idle_units = units  # negative where more are busy than there are
        self._seconds: dict[str, float] = {idle: 0.0}
        self._at = clock()
        self._lock = threading.Lock()

    @contextmanager
    def unit(self, state: str) -> Iterator["Unit"]:
        """Count one unit as in ``state``, until the block ends or moves it to another."""
        unit = Unit(self)
        unit.move(state)
        try:
            yield unit
        finally:
            self._change(unit.state, None)

    def seconds(self) -> Mapping[str, float]:
        # In seconds of units.
        with self._lock:
            self._count()
            return dict(self._seconds)

    def _change(self, before: str | None, after: str | None) -> None:
        with self._lock:
            self._count()
            if before is None:
                self._idle_units -= 1
            else:
                self._busy[before] -= 1
            if after is None:
                self._idle_units += 1
            else:
                self._busy[after] = self._busy.get(after, 0) + 1

    def _count(self) -> None:
        now = self._clock()
        elapsed, self._at = now - self._at, now
        if self._idle_units > 0:
            self._seconds[self._idle] += elapsed * self._idle_units
        for state, units in self._busy.items():
            if units:
                self._seconds[state] = self._seconds.get(state, 0.0) + elapsed * units


class Unit:
    """A unit that does something. Made by :meth:`Occupancy.unit`."""

    __slots__ = ("_of", "state")

    def __init__(self, of: Occupancy) -> None:
        self._of = of
        self.state: str | None = None

    def move(self, state: str) -> None:
        self._of._change(self.state, state)  # noqa: SLF001 - its other half
        self.state = state
