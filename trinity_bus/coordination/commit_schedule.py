"""When a coordinator reads, counts time and commits. Pure: it is told the time, and what was read and decided.

::

    IDLE ----took(), decided()----> PENDING --begin()--> UNDER WAY --ended()--> IDLE
      '--a heartbeat is due, or positions--^                 '--what comes meanwhile is PENDING behind it

What somebody waits for is committed as soon as there may be another transaction; what nobody waits for is kept a little
for company. There is one transaction at a time, and what is pending is bounded. A long transaction puts the next one
off, but for the end of a batch: that is what a trainer and clients wait for, and there are few of them.

A transaction that takes as long as a heartbeat says that the broker is away. Then nobody's silence says anything:
nothing is read, and nothing ticks, until it has ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from schemas import BatchLifecycleState, BatchRecord, SetPace
from schemas.topics import BATCHES
from trinity_bus.coordination.effects import Effect, Write

# Least time from the begin of a transaction to that of the next: each costs the brokers, the explorers that it has
# orders for, and this process milliseconds, whatever is in it. One that follows a pause begins at once.
COMMIT_EVERY_S: Final = 0.008
# Most of the time that may be spent in transactions: where they take long, the machines are busy, and fewer, larger
# ones leave more of them to the work itself.
COMMIT_SHARE: Final = 0.5
# After so long the next one begins, whatever the last one took.
COMMIT_LATEST_S: Final = 0.03
# With so many commands and events at most, the end of a batch does not wait for more of them: with more, ends come in
# every transaction, and the machines have no time to lose.
MAX_AHEAD: Final = 64
# How long what nobody waits for is kept: tasks of a batch that is not full yet, heartbeats.
LINGER_S: Final = 0.05
# Least time between two reads of tasks: each costs the broker and this process a request, for one as for hundreds. One
# that comes after a pause is taken at once.
TASKS_EVERY_S: Final = 0.025
# How often positions are committed under the consumer group, while records come.
POSITIONS_EVERY_S: Final = 1.0
# So many commands and events make a transaction full. With more, all that is under way would move in step: explorers
# would wait while the coordinator decides, and it while they work.
MAX_SIGNALS: Final = 256
# Taking tasks in keeps results waiting for as long as it lasts.
MAX_TASKS: Final = 256
# Until it is committed, each task is kept as it came, for its dead letter.
MAX_TASK_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class ReadPlan:
    until: float
    tasks: bool
    signals: bool  # commands and events


@dataclass(frozen=True, slots=True)
class CommitPlan:
    beats: bool  # whether it carries the heartbeat
    marks: bool  # whether it commits positions under the consumer group
    since: float | None  # when the first of its records came


@dataclass(slots=True)
class _Pending:
    since: float | None = None
    is_awaited: bool = False
    ends_batch: bool = False
    tasks: int = 0
    task_bytes: int = 0
    signals: int = 0


class CommitSchedule:
    """When to commit. ``now`` is in seconds of any steady clock; so are all times."""

    def __init__(self, tick_s: float, heartbeat_s: float, now: float) -> None:
        self._tick_s = tick_s
        self._heartbeat_s = heartbeat_s
        self._pending = _Pending()
        self._is_under_way = False
        self._has_unmarked = False  # whether records were read whose positions are not committed under the group
        self._began_at = self._beat_at = self._marked_at = self._ticked_at = self._tasks_at = now
        self._soonest = now + COMMIT_EVERY_S  # when the next transaction may begin

    # -- what is to be done ------------------------------------------------------------------------------------------

    def stands_still(self, now: float) -> bool:
        """Whether to wait for the transaction that is under way, and for nothing else."""
        return self._is_under_way and now >= self._began_at + self._heartbeat_s

    def plan(self, now: float, *, wants_tasks: bool) -> ReadPlan:
        """Return what to wait for, and until when; a transaction that ends is news too."""
        pending, until = self._pending, self._ticked_at + self._tick_s
        if not self._is_under_way:
            until = min(until, max(self._beat_at + self._heartbeat_s, self._soonest))
            if pending.since is not None:
                until = min(until, self._commit_at())
        tasks = wants_tasks and pending.tasks < MAX_TASKS and pending.task_bytes < MAX_TASK_BYTES
        if tasks and now < self._tasks_at + TASKS_EVERY_S:
            tasks, until = False, min(until, self._tasks_at + TASKS_EVERY_S)
        return ReadPlan(max(until, now), tasks, pending.signals < MAX_SIGNALS)

    def tick(self, now: float) -> bool:
        if now < self._ticked_at + self._tick_s:
            return False
        self._ticked_at = now
        return True

    def is_due(self, now: float) -> bool:
        return not self._is_under_way and now >= self._commit_at()

    # -- what has been done ------------------------------------------------------------------------------------------

    def took(self, now: float, *, signals: int = 0, tasks: int = 0, task_bytes: int = 0) -> None:
        if not (signals or tasks):
            return
        pending = self._pending
        if pending.since is None:
            pending.since = now
        pending.signals += signals
        pending.tasks += tasks
        pending.task_bytes += task_bytes
        self._has_unmarked = True
        if tasks:
            self._tasks_at = now

    def decided(self, effects: Iterable[Effect]) -> None:
        pending = self._pending
        for effect in effects:
            if not isinstance(effect, Write):
                continue
            if effect.topic is BATCHES and isinstance(effect.record, BatchRecord):
                pending.is_awaited = pending.is_awaited or effect.record.state is not BatchLifecycleState.PENDING
                pending.ends_batch = pending.ends_batch or effect.record.state in _ENDS
            elif type(effect.record) is not SetPace:
                pending.is_awaited = True

    def begin(self, now: float, *, has_news: bool) -> CommitPlan | None:
        """Return the transaction that begins now, with all that is pending; None where there is nothing to tell."""
        since, self._pending = self._pending.since, _Pending()
        marks = self._has_unmarked and now >= self._marked_at + POSITIONS_EVERY_S
        beats = now >= self._beat_at + self._heartbeat_s
        if not (has_news or marks or beats):
            return None
        if marks:
            self._has_unmarked, self._marked_at = False, now
        if beats:
            self._beat_at = now
        self._began_at, self._is_under_way = now, True
        self._soonest = now + COMMIT_EVERY_S
        return CommitPlan(beats, marks, since)

    def ended(self, now: float) -> None:
        self._is_under_way = False
        wanted = (now - self._began_at) / COMMIT_SHARE
        self._soonest = self._began_at + min(max(wanted, COMMIT_EVERY_S), COMMIT_LATEST_S)

    def taken_back(self) -> None:
        """Note that nothing is pending or under way: all of it is decided again."""
        self._pending, self._is_under_way = _Pending(), False

    def _commit_at(self) -> float:
        pending = self._pending
        if pending.ends_batch and pending.signals <= MAX_AHEAD:
            return min(self._soonest, self._began_at + COMMIT_EVERY_S)
        if pending.since is None or pending.is_awaited:
            return self._soonest
        return max(self._soonest, min(pending.since + LINGER_S, self._beat_at + self._heartbeat_s))


_ENDS = (BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED)
