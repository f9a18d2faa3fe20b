"""When the coordinator reads, ticks and commits, told any times and any content."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import BatchLifecycleState, BatchRecord, Cancel, Task
from schemas.topics import BATCHES, ROLLOUTS
from trinity_bus.coordination import Effect, Observe, Origin, RejectionReason, RejectTask, Write
from trinity_bus.coordination.commit_schedule import (
    COMMIT_EVERY_S,
    COMMIT_LATEST_S,
    COMMIT_SHARE,
    LINGER_S,
    MAX_AHEAD,
    MAX_SIGNALS,
    MAX_TASK_BYTES,
    MAX_TASKS,
    POSITIONS_EVERY_S,
    TASKS_EVERY_S,
    CommitSchedule,
)
from trinity_bus.coordination.effects import Fact

TICK_S, BEAT_S = 0.1, 0.5
EPSILON = 1e-9


def moved(state: BatchLifecycleState) -> Write:
    record = BatchRecord(batch_id="b", batch_type="train", state=state, sequence=1, expected_task_count=2)
    return Write(BATCHES, "b", record)


TASK = Task(task_id="t", workflow="math", prompt="1 + 1?", answer="2")
ORDER = Write(ROLLOUTS, "e", Cancel(explorer="e", incarnation="i", task_id="t", attempt=1, reason="batch ended"))
NOBODY_WAITS = (
    moved(BatchLifecycleState.PENDING),
    Observe(Fact.EXPLORER_JOINED, "e"),
    RejectTask(TASK, Origin(0, 0), RejectionReason.DUPLICATE_TASK, "", None),
)


def schedule() -> CommitSchedule:
    return CommitSchedule(TICK_S, BEAT_S, now=0.0)


@pytest.mark.parametrize(
    ("effects", "awaited"),
    [
        ((), False),
        (NOBODY_WAITS, False),
        ((ORDER,), True),
        ((*NOBODY_WAITS, ORDER, *NOBODY_WAITS), True),
        *(((moved(state),), state is not BatchLifecycleState.PENDING) for state in BatchLifecycleState),
    ],
)
def test_only_what_somebody_waits_for_makes_it_go_at_once(effects: tuple[Effect, ...], awaited: bool) -> None:
    one = schedule()
    one.took(0.02, signals=1)
    one.decided(effects)
    one.decided(NOBODY_WAITS)
    assert one.is_due(0.02) is awaited
    assert one.is_due(0.02 + LINGER_S)


@pytest.mark.parametrize(
    ("took_s", "after_s"),
    [(0.001, COMMIT_EVERY_S), (0.006, 0.006 / COMMIT_SHARE), (0.1, COMMIT_LATEST_S), (9.0, COMMIT_LATEST_S)],
)
def test_the_longer_one_takes_the_later_the_next_begins_up_to_a_limit(took_s: float, after_s: float) -> None:
    one = schedule()
    one.begin(1.0, has_news=True)
    one.took(1.0, signals=1)
    one.decided([ORDER])
    assert not one.is_due(1.0 + after_s + EPSILON), "one at a time"
    one.ended(1.0 + took_s)
    assert not one.is_due(1.0 + after_s - EPSILON)
    assert one.is_due(1.0 + after_s + EPSILON)


@pytest.mark.parametrize("state", [BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED])
def test_the_end_of_a_batch_waits_for_the_one_under_way_alone_unless_there_is_much_else(
    state: BatchLifecycleState,
) -> None:
    one = schedule()
    one.begin(1.0, has_news=True)
    one.took(1.0, signals=MAX_AHEAD)
    one.decided([ORDER, moved(state), ORDER])
    one.tick(1.0)
    assert not one.is_due(2.0), "one at a time"
    one.ended(1.0 + 2 * COMMIT_EVERY_S)
    assert one.plan(1.0, wants_tasks=False).until == pytest.approx(1.0 + COMMIT_EVERY_S)
    assert one.is_due(1.0 + 2 * COMMIT_EVERY_S)
    one.took(1.0, signals=1)
    assert not one.is_due(1.0 + 2 * COMMIT_EVERY_S)
    assert one.is_due(1.0 + COMMIT_LATEST_S + EPSILON)


def test_the_end_of_a_batch_too_leaves_the_least_time_between_two() -> None:
    one = schedule()
    one.begin(1.0, has_news=True)
    one.ended(1.001)
    one.took(1.001, signals=1)
    one.decided([moved(BatchLifecycleState.FINALIZED)])
    assert not one.is_due(1.0 + COMMIT_EVERY_S - EPSILON)
    assert one.is_due(1.0 + COMMIT_EVERY_S + EPSILON)


def test_no_more_is_read_than_a_transaction_may_hold() -> None:
    for taken in ({"tasks": MAX_TASKS}, {"tasks": 1, "task_bytes": MAX_TASK_BYTES}):
        one = schedule()
        one.took(1.0, **taken)
        assert not one.plan(2.0, wants_tasks=True).tasks
        assert one.plan(2.0, wants_tasks=True).signals
        one.begin(2.0, has_news=True)
        assert one.plan(2.0, wants_tasks=True).tasks
    one = schedule()
    one.took(1.0, signals=MAX_SIGNALS)
    assert not one.plan(1.0, wants_tasks=True).signals
    assert one.plan(1.0, wants_tasks=True).tasks


def test_tasks_are_taken_now_and_then_and_only_if_wanted() -> None:
    one = schedule()
    assert not one.plan(1.0, wants_tasks=False).tasks
    assert one.plan(1.0, wants_tasks=True).tasks
    one.took(1.0, tasks=1)
    plan = one.plan(1.0 + TASKS_EVERY_S / 2, wants_tasks=True)
    assert not plan.tasks
    assert plan.until <= 1.0 + TASKS_EVERY_S
    assert one.plan(1.0 + TASKS_EVERY_S + EPSILON, wants_tasks=True).tasks


def test_where_there_is_nothing_to_tell_nothing_begins_but_heartbeats_and_positions() -> None:
    one = schedule()
    assert one.begin(0.1, has_news=False) is None
    beat = one.begin(BEAT_S, has_news=False)
    assert beat is not None
    assert (beat.beats, beat.marks, beat.since) == (True, False, None)
    one.ended(BEAT_S)
    one.took(0.6, signals=1)
    assert one.begin(0.7, has_news=False) is None
    later = one.begin(POSITIONS_EVERY_S, has_news=False)
    assert later is not None
    assert later.marks


def test_while_the_broker_is_away_time_stands_still() -> None:
    one = schedule()
    one.begin(1.0, has_news=True)
    assert not one.stands_still(1.0 + BEAT_S / 2)
    assert one.stands_still(1.0 + BEAT_S)
    one.ended(8.0)
    assert not one.stands_still(9.0)


def test_what_was_decided_and_is_taken_back_is_not_pending() -> None:
    one = schedule()
    one.took(1.0, tasks=MAX_TASKS, signals=MAX_SIGNALS)
    one.begin(1.0, has_news=True)
    one.took(1.1, tasks=MAX_TASKS, signals=MAX_SIGNALS)
    one.taken_back()
    plan = one.plan(2.0, wants_tasks=True)
    assert (plan.tasks, plan.signals) == (True, True)
    assert one.is_due(2.0)


@dataclass
class Came:
    after_s: float
    tasks: int
    signals: int
    is_awaited: bool
    commit_s: float  # how long the transaction takes that it goes into


arrivals = st.lists(
    st.builds(
        Came,
        after_s=st.floats(0, 0.3),
        tasks=st.integers(0, 300),
        signals=st.integers(0, 300),
        is_awaited=st.booleans(),
        commit_s=st.floats(0.001, 1.0),
    ),
    max_size=30,
)


class Loop:
    """Stands in for the service: waits as long as it may, for whatever comes next, and does as it is told."""

    def __init__(self, comes: list[Came]) -> None:
        self.schedule = schedule()
        self.now = 0.0
        self.coming: list[tuple[float, Came]] = []
        at = 0.0
        for came in comes:
            at += came.after_s
            self.coming.append((at, came))
        self.ends_at: float | None = None  # of the transaction under way
        self.commit_s = 0.001
        self.began: list[float] = [0.0]
        self.free_at = 0.0  # when the next may begin, by the last one's length
        self.beats: list[float] = [0.0]
        self.oldest: float | None = None
        self.awaited_since: float | None = None

    def turn(self) -> None:
        if self.schedule.stands_still(self.now):
            assert self.ends_at is not None
            self.now = max(self.now, self.ends_at)
        else:
            self.read()
        if self.ends_at is not None and self.now >= self.ends_at:
            self.schedule.ended(self.now)
            self.free_at = self.began[-1] + min(max((self.now - self.began[-1]) / COMMIT_SHARE, 0), COMMIT_LATEST_S)
            self.ends_at = None
        if self.schedule.is_due(self.now):
            self.begin()
        elif self.ends_at is None:
            self.check_nothing_is_late()

    def read(self) -> None:
        plan = self.schedule.plan(self.now, wants_tasks=True)
        assert self.now <= plan.until <= self.now + TICK_S
        until = plan.until if self.ends_at is None else min(plan.until, self.ends_at)
        at, came = self.coming[0] if self.coming else (float("inf"), None)
        if came is not None and not ((came.tasks and plan.tasks) or (came.signals and plan.signals)):
            at = float("inf")
        self.now = max(self.now, min(until, at))
        if came is not None and at <= self.now:
            self.take(came)
        self.schedule.tick(self.now)

    def take(self, came: Came) -> None:
        self.coming.pop(0)
        self.schedule.took(self.now, tasks=came.tasks, signals=came.signals)
        self.commit_s = came.commit_s
        self.oldest = self.now if self.oldest is None else self.oldest
        if came.is_awaited:
            self.schedule.decided([ORDER])
            self.awaited_since = self.now if self.awaited_since is None else self.awaited_since

    def begin(self) -> None:
        assert self.ends_at is None, "one at a time"
        commit = self.schedule.begin(self.now, has_news=self.oldest is not None)
        if commit is not None:
            assert self.now >= self.began[-1] + COMMIT_EVERY_S - EPSILON
            assert commit.since == self.oldest
            self.began.append(self.now)
            self.ends_at = self.now + self.commit_s
            if commit.beats:
                self.beats.append(self.now)
        self.oldest = self.awaited_since = None

    def check_nothing_is_late(self) -> None:
        free_at = max(self.began[-1] + COMMIT_EVERY_S, self.free_at)
        assert self.awaited_since is None or self.now < max(free_at, self.awaited_since) + EPSILON
        assert self.oldest is None or self.now < max(free_at, self.oldest + LINGER_S) + EPSILON


@given(arrivals)
def test_a_service_that_does_as_it_is_told_is_never_late_and_never_busy(comes: list[Came]) -> None:
    loop = Loop([came for came in comes if came.tasks or came.signals])
    end = sum(came.after_s + came.commit_s for came in comes) + 2.0
    turns = 0
    while loop.now < end:
        loop.turn()
        turns += 1
    assert not loop.coming
    # A few for each thing that comes, and for each tick, heartbeat and taking of tasks.
    assert turns <= 10 * len(comes) + 10 + 3 * end / TICK_S
    assert all(later - sooner <= BEAT_S + 1.0 + TICK_S for sooner, later in pairwise(loop.beats))
