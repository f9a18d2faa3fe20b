"""Which of several coordinators works, and when one that stands by takes over.

::

                       +--------- fenced, or the log failed ------------+
                       v                                                |
    (start) -----> STANDBY --silence, or nobody leads--> TAKING_OVER ---+
                       ^                                     | first commit
                       |                                     v
                       +----- fenced, or the log failed --- ACTIVE --stopped--> LEFT (it ends)
                       '--had led for a while, and reads that another one leads--> FENCED (it ends)

**Safety never depends on time.** Whoever takes over fences all others at the broker before it reads the state, by the
transactional id that all share; a fenced one can write nothing. So a wrong guess costs the one that was taken for dead
its place, and nothing else. Only liveness depends on time, which is counted as in :mod:`trinity_bus.awake`. Each that
stands by waits a little longer by a share of its own; whoever loses a race waits out a whole silence before it tries
again, and twice that after the next loss.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from trinity_bus.awake import SteadyClock

LONGEST_STEP = 0.25  # share of ``takeover_s`` that may pass at once; see trinity_bus.awake
SOUND = 10.0  # in multiples of ``takeover_s``: who has led for so long has not failed all the time since before
SPREAD = 0.2  # share of ``takeover_s`` over which standbys spread their waits
LEFT_SPREAD_S = 0.3  # seconds over which they spread when the leader has left: about what a takeover takes
# In multiples of ``takeover_s``: how much longer silence may last when the log was away. The others have to find their
# way back to it, too, and the broker has to remember their transactions.
AFTER_OUTAGE = 2.0
MAX_DOUBLINGS = 5

type LeaderState = Literal["taking_over", "active", "left"]


class Leader(Struct, array_like=True, frozen=True):
    name: str
    incarnation: str
    state: LeaderState


class Role(StrEnum):
    STANDBY = "standby"
    TAKING_OVER = "taking over"
    ACTIVE = "active"
    LEFT = "left"
    FENCED = "fenced"


class LeadershipError(Exception):
    """It was told something that cannot be in its state: a defect of whoever runs it."""


class Leadership:
    """One coordinator's part in the election. It has read the changelog to its end when it is made.

    ``takeover_s``: silence after which it takes over. ``share``, in [0, 1): how its wait differs from that of others.
    """

    def __init__(self, *, name: str, incarnation: str, takeover_s: float, share: float, now: float) -> None:
        self.name = name
        self.incarnation = incarnation
        self.role = Role.STANDBY
        self.leader: Leader | None = None  # who led last, as far as was read; None if nobody ever has
        self._takeover_s = takeover_s
        self._share = share
        self._delay_s = takeover_s * SPREAD * share
        self._losses = 0
        self._was_fenced = False  # after it had led for a while
        self._allowance_s = 0.0
        self._clock = SteadyClock(takeover_s * LONGEST_STEP)
        self._clock.advance(now)
        self._since = 0.0  # when the present silence, or the present role, began
        self._away_since: float | None = None
        self._broken_since: float | None = None

    def entry(self, state: LeaderState) -> Leader:
        return Leader(self.name, self.incarnation, state)

    # -- what it is told ---------------------------------------------------------------------------------------------

    def progress(self, now: float, leader: Leader | None) -> None:
        """Note that committed progress was read, a sign of life whoever made it; ``leader`` is who leads, if known."""
        self._expect(Role.STANDBY, Role.TAKING_OVER)
        self.in_touch(now)
        self._since = self._clock.now
        self._allowance_s = 0.0
        self.leader = leader
        if leader is None or leader.incarnation == self.incarnation:
            return
        if leader.state == "active":
            self._losses, self._broken_since = 0, None
        if self._was_fenced and self.role is Role.STANDBY:
            self._become(Role.FENCED, now)

    def in_touch(self, now: float) -> None:
        self._clock.advance(now)
        self._away_since = None

    def out_of_touch(self, now: float) -> None:
        # Silence counts anew: who cannot read has no right to call others silent.
        self._expect(Role.STANDBY)
        self._since = self._clock.advance(now)
        self._allowance_s = self._takeover_s * AFTER_OUTAGE
        if self._away_since is None:
            self._away_since = self._since

    def take_over(self, now: float) -> None:
        self._expect(Role.STANDBY)
        self._become(Role.TAKING_OVER, now)

    def lead(self, now: float) -> None:
        self._expect(Role.TAKING_OVER)
        self._become(Role.ACTIVE, now)
        self._losses, self._was_fenced = 0, False
        self.leader = self.entry("active")

    def committed(self, now: float) -> None:
        self._expect(Role.ACTIVE)
        self._clock.advance(now)

    def fenced(self, now: float) -> None:
        """Note that the broker refuses it: another one takes over, or its transaction was open for too long."""
        self._expect(Role.TAKING_OVER, Role.ACTIVE)
        if self.role is Role.ACTIVE:
            self._was_fenced = self._clock.advance(now) - self._since >= self._takeover_s
        self._losses = min(self._losses + 1, MAX_DOUBLINGS)
        self._become(Role.STANDBY, now)

    def broken(self, now: float) -> None:
        """Note that the log failed it, and it forgets what it has not committed."""
        self._expect(Role.TAKING_OVER, Role.ACTIVE)
        led_s = self._clock.advance(now) - self._since if self.role is Role.ACTIVE else 0.0
        if self._broken_since is None or led_s >= self._takeover_s * SOUND:
            self._broken_since = self._clock.now
        self._become(Role.STANDBY, now)

    def leave(self, now: float) -> None:
        self._become(Role.LEFT, now)

    # -- what it decides ---------------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether it should take over now, provided that it has read all there is."""
        self._expect(Role.STANDBY)
        return self._clock.advance(now) - self._since >= self.standby_s

    @property
    def standby_s(self) -> float:
        if self._losses:
            # Somebody else is about to lead, whether that can be read yet or not.
            return (self._takeover_s + self._delay_s) * float(1 << (self._losses - 1))
        if self.leader is None:
            return 0.0
        if self.leader.state == "left":
            return LEFT_SPREAD_S * self._share
        if self.leader.incarnation == self.incarnation:
            # Nobody has taken over from it. Not at once: what failed a moment ago may need one.
            return self._takeover_s * LONGEST_STEP
        return self._takeover_s + self._delay_s + self._allowance_s

    @property
    def failing_s(self) -> float:
        """For how long the log has not answered, or has failed each of its attempts to lead, in seconds."""
        began = [since for since in (self._away_since, self._broken_since) if since is not None]
        return self._clock.now - min(began, default=self._clock.now)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _become(self, role: Role, now: float) -> None:
        self.role = role
        self._since = self._clock.advance(now)

    def _expect(self, *roles: Role) -> None:
        if self.role not in roles:
            raise LeadershipError(f"{self.name} is {self.role}")
