"""What makes a process alive and ready. Pure: told the time, owns nothing.

::

    STARTING --mark_ready--> WORKING --mark_stopping--> STOPPING
    alive: within start_s     alive: the event loop has turned within wedged_s
    not ready                 ready: alive, and the broker answers     not ready

==============================  ==========  ===========
what fails                      ``/livez``  ``/readyz``
==============================  ==========  ===========
the event loop is wedged        503         503
the start takes too long        503         503
the broker is lost              200         503
what is to be read is not read  200         503
what is to be written waits     200         503
the service is stopping         200         503
==============================  ==========  ===========

A lost broker is no reason to start a process anew: that would not bring the broker back, and would throw away an engine
that took minutes to load.
"""

from dataclasses import dataclass
from enum import Enum, auto


class Phase(Enum):
    STARTING = auto()
    WORKING = auto()
    STOPPING = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    ok: bool
    reason: str  # one line


class HealthState:
    """What is known of a process.

    Args:
        now: Seconds of any steady clock.
        wedged_s: The event loop must turn at least this often once the service works.
        start_s: Limit of the start, in which heavy libraries may hold the loop.
        unread_s: How long a reader may return nothing while there is something to read, or nobody tells whether.
    """

    def __init__(self, now: float, *, wedged_s: float, start_s: float, unread_s: float) -> None:
        self.phase = Phase.STARTING
        # Why what is to be written is not durable; None where it is, or soon will be.
        self.waiting: str | None = None
        self._started = self._turned = now
        self._wedged_s = wedged_s
        self._start_s = start_s
        self._unread_s = unread_s
        self._read: dict[str, float] = {}  # when each thing that is watched was found to be read last

    def turned(self, now: float) -> None:
        self._turned = now

    def reading(self, what: str, now: float, *, keeps_up: bool) -> None:
        """Note that it was looked whether something is read; since when it is not counts from the first time."""
        if keeps_up or what not in self._read:
            self._read[what] = now

    def done_reading(self, what: str) -> None:
        self._read.pop(what, None)

    def alive(self, now: float) -> Verdict:
        if self.phase is Phase.STARTING:
            age = now - self._started
            if age > self._start_s:
                return Verdict(False, f"still starting after {age:.0f} s, the limit is {self._start_s:g} s")
            return Verdict(True, "starting")
        silent = now - self._turned
        if silent > self._wedged_s:
            return Verdict(False, f"the event loop has not turned for {silent:.1f} s, limit {self._wedged_s:g} s")
        return Verdict(True, "alive")

    def ready(self, now: float, broker: str | None) -> Verdict:
        """Whether it can work now. ``broker``: why the broker cannot be reached; None if it can."""
        alive = self.alive(now)
        if not alive.ok:
            return alive
        if self.phase is not Phase.WORKING:
            return Verdict(False, self.phase.name.lower())
        if broker is not None:
            return Verdict(False, broker)
        if self.waiting is not None:
            return Verdict(False, self.waiting)
        for what, read_at in list(self._read.items()):
            if now - read_at > self._unread_s:
                return Verdict(
                    False, f"nothing was read of {what} for {now - read_at:.0f} s, the limit is {self._unread_s:g} s"
                )
        return Verdict(True, "ready")
