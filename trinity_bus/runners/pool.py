"""Which attempt goes to which runner, and what happens to it when the runner dies. Pure: no process, socket or clock.

A *job* is an attempt that wants to run, a *place* one of the configured number of runners, and a *serial* one process::

    a job:     WAITING --a runner has room--> RUNNING --ended()--> (forgotten)
                  ^                             |--cancel()--> LETTING GO --ended(), or its runner dies--> (forgotten)
                  |--its runner was stopped because of another job, or never came up
                  |                             |
                  |                             '--its runner died, nobody knows of what--> SUSPECT
               SUSPECT: it runs again, alone in a runner of its own; when that dies too, it was this job: FailJob

    a runner:  STARTING --first sign of life--> IDLE <--> BUSY
                  |        (of a place) too large, worn, too many jobs --> LEAVING: another takes its place at once,
                  |                                                         it ends when its jobs have ended
                  |        stuck, or holding on to a cancelled job -------> KILLED
                  '--three in a row die before it--> GiveUp                 --> (gone) and another takes its place

So a runner that dies costs the jobs that shared it nothing but time: only the one that kills two is to blame.

========================================  =========================================================================
what is wrong                             what happens
========================================  =========================================================================
a runner dies of itself or from outside   its jobs are suspects
it answers no ping for ``runner_stuck_s``  SIGABRT, so that it says where it is, then SIGKILL; its jobs are suspects
a cancelled job is not let go of in time  SIGKILL; its other jobs go back to the head of the queue
it uses more memory than it should        LEAVING; with twice as much SIGKILL, and its jobs are suspects
nobody waits for a thread that it runs    LEAVING (``worn``)
it does not end when it should            SIGKILL
========================================  =========================================================================

The explorer's time is an argument of every method that needs it, in seconds of any steady clock.
"""

import math
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from trinity_bus.config import ExplorerSettings

# Suspects that run at once, each alone in a process; the others wait.
QUARANTINE = 16
# Runners that may die one after the other before they have said anything.
MAX_FAILED_STARTS = 3
# After so long, one that was asked to abort is killed.
KILL_AGAIN_S = 1.0


class StartRunner(Struct, frozen=True):
    serial: int


class StartJob(Struct, frozen=True):
    """Give a job to a runner, which may not have said anything yet."""

    serial: int
    job: int


class CancelJob(Struct, frozen=True):
    serial: int
    job: int


class PingRunner(Struct, frozen=True):
    serial: int


class CloseRunner(Struct, frozen=True):
    serial: int


class KillRunner(Struct, frozen=True):
    serial: int
    number: signal.Signals
    why: str


class FailJob(Struct, frozen=True):
    """A job is to blame for the death of its runner."""

    job: int
    how: str


class GiveUp(Struct, frozen=True):
    why: str


type PoolEffect = StartRunner | StartJob | CancelJob | PingRunner | CloseRunner | KillRunner | FailJob | GiveUp


@dataclass(slots=True)
class _Job:
    serial: int | None = None
    alone: bool = False
    cancelled_at: float | None = None


@dataclass(slots=True)
class PoolRunner:
    serial: int
    place: int | None  # None: it is leaving, or in quarantine
    alone: bool = False
    restarts: int = 0  # runners that had its place before
    jobs: dict[int, None] = field(default_factory=dict)
    heard: bool = False
    unanswered: int = 0
    taken: int = 0
    ended: int = 0  # jobs that have ended in it
    rss_mib: float = 0.0
    ends_at: float | None = None  # when it was told to end, or killed
    killed: str | None = None
    blame: bool = True  # whether its death makes suspects of its jobs

    @property
    def state(self) -> str:
        if self.ends_at is not None or (self.place is None and not self.alone):
            return "stopping"
        if not self.heard:
            return "starting"
        return "busy" if self.jobs else "idle"


class Pool:
    """Decides; whoever owns it carries out what its methods return, in order."""

    def __init__(self, settings: ExplorerSettings) -> None:
        self.tick_s = min(1.0, settings.runner_stuck_s / 5, settings.cancel_grace_s / 2)  # how often it is to look
        self._settings = settings
        self._stuck_pings = math.ceil(settings.runner_stuck_s / self.tick_s)
        self._places = min(settings.runners, settings.slots)
        self._jobs: dict[int, _Job] = {}
        self._waiting: deque[int] = deque()
        self._suspects: deque[int] = deque()
        self._runners: dict[int, PoolRunner] = {}
        self._forked = [0] * self._places
        self._next_serial = 0
        self._failed_starts = 0
        self._running = 0

    def begin(self) -> list[PoolEffect]:
        return [self._fork(place) for place in range(self._places)]

    def submit(self, job: int) -> list[PoolEffect]:
        self._jobs[job] = _Job()
        self._waiting.append(job)
        return self._assign()

    def cancel(self, job: int, now: float, *, at_once: bool = False) -> list[PoolEffect]:
        """Nobody wants a job any more; it counts as running until its runner lets go of it.

        Nothing happens to one that has ended. ``at_once`` stops its runner instead of giving it time.
        """
        known = self._jobs.get(job)
        if known is None or known.cancelled_at is not None:
            return []
        if known.serial is None:
            (self._suspects if known.alone else self._waiting).remove(job)
            del self._jobs[job]
            return []
        known.cancelled_at = now
        runner = self._runner_of(job)
        effects: list[PoolEffect] = [CancelJob(runner.serial, job)]
        if at_once:
            effects += self._kill(runner, f"job {job} was to be stopped at once", now, blame=False)
        return effects

    def ended(self, job: int, now: float) -> list[PoolEffect]:
        runner = self._runner_of(job)
        del self._jobs[job]
        del runner.jobs[job]
        runner.ended += 1
        self._running -= 1
        effects: list[PoolEffect] = []
        if runner.alone or (runner.place is None and not runner.jobs):
            effects += self._close(runner, now)
        elif (most := self._settings.runner_max_attempts) is not None and runner.taken >= most:
            effects += self._leave(runner, now)
        return effects + self._assign()

    def heard(self, serial: int) -> None:
        runner = self._runners.get(serial)
        if runner is not None:
            runner.unanswered = 0
            if not runner.heard:
                runner.heard = True
                self._failed_starts = 0

    def worn(self, serial: int, now: float) -> list[PoolEffect]:
        """Note that a runner has said that something goes on in it that only its end stops."""
        runner = self._runners.get(serial)
        return [] if runner is None or runner.place is None else self._leave(runner, now)

    def broken(self, serial: int, why: str, now: float) -> list[PoolEffect]:
        """Note that a runner has said what it must not say, or has closed its socket."""
        runner = self._runners.get(serial)
        return [] if runner is None else self._kill(runner, why, now)

    def died(self, serial: int, how: str) -> list[PoolEffect]:
        """Note that a runner is gone; ``how`` as in "was ended by SIGSEGV"."""
        runner = self._runners.pop(serial)
        effects: list[PoolEffect] = []
        how = how if runner.killed is None else f"{how}, because {runner.killed}"
        if not runner.heard and runner.blame and (runner.killed is not None or runner.ends_at is None):
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                return [GiveUp(f"{self._failed_starts} runners in a row died as they started; the last one {how}")]
        for job in reversed(runner.jobs):
            effects += self._requeue_or_fail(job, how, suspect=runner.heard and runner.blame)
        if runner.place is not None:
            effects.append(self._fork(runner.place))
        return effects + self._assign()

    def tick(self, now: float, rss_mib: Mapping[int, float]) -> list[PoolEffect]:
        """Ask the runners whether they are there, and look at what is overdue; ``rss_mib`` by serial, if known."""
        effects: list[PoolEffect] = []
        for runner in list(self._runners.values()):
            runner.rss_mib = rss_mib.get(runner.serial, runner.rss_mib)
            effects += self._look(runner, now)
        return effects

    @property
    def runners(self) -> list[PoolRunner]:
        """Those of a place first, in the order of places."""
        return sorted(self._runners.values(), key=lambda one: (one.place is None, one.place, one.serial))

    def _assign(self) -> list[PoolEffect]:
        effects: list[PoolEffect] = []
        alone = sum(runner.alone for runner in self._runners.values()) if self._suspects else 0
        while self._running < self._settings.slots:
            if self._suspects and alone < QUARANTINE:
                alone += 1
                fork = self._fork(None)
                effects += [fork, self._start(self._runners[fork.serial], self._suspects.popleft())]
            elif self._waiting and (runner := self._roomiest()) is not None:
                effects.append(self._start(runner, self._waiting.popleft()))
            else:
                break
        return effects

    def _roomiest(self) -> PoolRunner | None:
        room = [
            (len(runner.jobs), runner.serial)
            for runner in self._runners.values()
            if runner.place is not None and runner.killed is None and len(runner.jobs) < self._capacity(runner.place)
        ]
        return self._runners[min(room)[1]] if room else None

    def _runner_of(self, job: int) -> PoolRunner:
        serial = self._jobs[job].serial
        if serial is None:
            raise KeyError(f"job {job} is in no runner")
        return self._runners[serial]

    def _capacity(self, place: int) -> int:
        share, left = divmod(self._settings.slots, self._places)
        return share + (place < left)

    def _fork(self, place: int | None) -> StartRunner:
        serial = self._next_serial
        self._next_serial += 1
        self._runners[serial] = runner = PoolRunner(serial, place, alone=place is None)
        if place is not None:
            runner.restarts = self._forked[place]
            self._forked[place] += 1
        return StartRunner(serial)

    def _start(self, runner: PoolRunner, job: int) -> StartJob:
        self._jobs[job].serial = runner.serial
        runner.jobs[job] = None
        runner.taken += 1
        self._running += 1
        return StartJob(runner.serial, job)

    def _requeue_or_fail(self, job: int, how: str, *, suspect: bool) -> list[PoolEffect]:
        known = self._jobs[job]
        known.serial = None
        self._running -= 1
        if known.cancelled_at is not None or (known.alone and suspect):
            del self._jobs[job]
            return [] if known.cancelled_at is not None else [FailJob(job, how)]
        known.alone = known.alone or suspect
        (self._suspects if known.alone else self._waiting).appendleft(job)
        return []

    def _close(self, runner: PoolRunner, now: float) -> list[PoolEffect]:
        if runner.ends_at is not None:
            return []
        runner.ends_at = now
        return [CloseRunner(runner.serial)]

    def _leave(self, runner: PoolRunner, now: float) -> list[PoolEffect]:
        # Another takes its place.
        place, runner.place, runner.restarts = runner.place, None, 0
        effects: list[PoolEffect] = [] if place is None else [self._fork(place)]
        return effects if runner.jobs else [*effects, *self._close(runner, now)]

    def _kill(
        self,
        runner: PoolRunner,
        why: str,
        now: float,
        *,
        number: signal.Signals = signal.SIGKILL,
        blame: bool = True,
    ) -> list[PoolEffect]:
        if runner.killed is not None:
            return []
        runner.killed, runner.ends_at, runner.blame = why, now, blame
        return [KillRunner(runner.serial, number, why)]

    def _look(self, runner: PoolRunner, now: float) -> list[PoolEffect]:
        cancel_grace_s, max_rss_mib = self._settings.cancel_grace_s, self._settings.runner_max_rss_mib
        if runner.ends_at is not None:
            grace_s = KILL_AGAIN_S if runner.killed is not None else cancel_grace_s
            late = now - runner.ends_at > grace_s
            return [KillRunner(runner.serial, signal.SIGKILL, "it did not end")] if late else []
        for job in runner.jobs:
            since = self._jobs[job].cancelled_at
            if since is not None and now - since >= cancel_grace_s:
                why = f"a workflow did not let go within {cancel_grace_s:g} s of being cancelled"
                return self._kill(runner, why, now, blame=False)
        if runner.unanswered >= self._stuck_pings:
            return self._kill(runner, "it was stuck: it answered nothing", now, number=signal.SIGABRT)
        runner.unanswered += 1
        effects: list[PoolEffect] = [PingRunner(runner.serial)]
        if max_rss_mib is not None:
            if runner.rss_mib > 2 * max_rss_mib:
                why = f"it used {runner.rss_mib:.0f} MiB of memory, more than twice of {max_rss_mib}"
                effects += self._kill(runner, why, now)
            # One that has done nothing yet would be followed by another of the same size.
            elif runner.rss_mib > max_rss_mib and runner.place is not None and runner.taken:
                effects += self._leave(runner, now)
        return effects
