from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from schemas import Task, TaskResult
from tests.support.fakes.mesh_records import task_result
from trinity_bus.client.results import CLEANUP, BatchTracker, Rejection, Wait, WaitAll, WaitOutcome, status_of

WAIT_AFTER_MIN_S = 30.0


def task(number: int, runs: int | None = None) -> Task:
    return Task(task_id=f"b#{number}", workflow="math", prompt="1", repeat_times=runs)


def result(number: int, completed: int = 1, total: int = 1, error: str | None = None) -> TaskResult:
    return task_result(
        f"b#{number}",
        status="completed" if completed == total else "partial" if completed else "failed",
        completed_runs=completed,
        total_runs=total,
        metrics={"reward": 1.0} if completed else {},
        error=error,
    )


class Histories(RuleBasedStateMachine):
    """Tasks are scheduled, end, end twice, are refused or given up; callers wait, take, and go on waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = BatchTracker("b")
        self.now = 0.0
        self.scheduled: list[int] = []
        self.ended: set[int] = set()
        self.given_up: set[int] = set()
        self.taken: list[int] = []
        self.waits: list[Wait] = []

    @rule(count=st.integers(1, 4))
    def schedule(self, count: int) -> None:
        numbers = range(len(self.scheduled), len(self.scheduled) + count)
        self.tracker.schedule([task(n) for n in numbers])
        self.scheduled += numbers

    @rule(data=st.data(), refused=st.booleans())
    def end(self, data: st.DataObject, refused: bool) -> None:
        if not self.scheduled:
            return
        number = data.draw(st.sampled_from(self.scheduled))
        new = number not in self.ended | self.given_up
        assert self.tracker.accept(Rejection(f"b#{number}", "no") if refused else result(number)) == new
        if new:
            self.ended.add(number)

    @rule()
    def give_up(self) -> None:
        self.tracker.give_up([f"b#{number}" for number in self.scheduled])
        self.given_up |= set(self.scheduled) - self.ended

    @rule(min_num=st.none() | st.integers(0, 6), timeout_s=st.sampled_from([0.0, 5.0, 100.0]))
    def start_to_wait(self, min_num: int | None, timeout_s: float) -> None:
        self.waits.append(Wait(self.tracker, self.now, timeout_s, WAIT_AFTER_MIN_S, min_num))

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 31.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def callers_look(self) -> None:
        self.waits = [wait for wait in self.waits if not self.is_over(wait)]

    def is_over(self, wait: Wait) -> bool:
        over = wait.over(self.now)
        if over is WaitOutcome.COMPLETE:
            assert self.tracker.unfinished == 0
        elif over is WaitOutcome.ENOUGH:
            assert wait.min_num is not None
            assert self.tracker.ready >= wait.min_num
            assert self.now >= wait.started_at + WAIT_AFTER_MIN_S
        elif over is WaitOutcome.TIMEOUT:
            assert self.now >= wait.started_at + wait.timeout_s
        else:
            assert self.tracker.unfinished > 0
            assert self.now < wait.started_at + wait.timeout_s
            assert 0 < wait.pause(self.now) <= wait.started_at + wait.timeout_s - self.now
        if over is not None:
            wrappers = self.tracker.completed()
            self.tracker.take(wrappers)
            numbers = [int(wrapper.task_id) for wrapper in wrappers]
            assert numbers == sorted(numbers)
            assert all(wrapper.status is not None for wrapper in wrappers)
            self.taken += numbers
        return over is not None

    @invariant()
    def nothing_is_lost_and_nothing_counts_twice(self) -> None:
        ready = [int(wrapper.task_id) for wrapper in self.tracker.completed()]
        assert sorted([*self.taken, *ready]) == sorted(self.ended)
        assert self.tracker.unfinished == len(set(self.scheduled) - self.ended - self.given_up)
        assert self.tracker.ready == len(ready)
        assert self.tracker.finished == len(self.ended)
        assert self.tracker.empty == (not ready and self.tracker.unfinished == 0)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestHistories = Histories.TestCase


def waiting(tasks: int, min_num: int) -> tuple[BatchTracker, Wait]:
    tracker = BatchTracker(1)
    tracker.schedule([task(n) for n in range(tasks)])
    return tracker, Wait(tracker, 0.0, 100.0, 30.0, min_num)


def test_enough_waits_for_the_others_and_then_no_longer() -> None:
    tracker, wait = waiting(3, 2)
    tracker.accept(result(0))
    assert wait.over(10.0) is None
    tracker.accept(result(1))
    assert wait.over(20.0) is None
    assert wait.pause(20.0) == 30.0
    assert wait.over(49.9) is None
    assert wait.over(50.0) is WaitOutcome.ENOUGH
    tracker.accept(result(2))
    assert wait.over(50.0) is WaitOutcome.COMPLETE
    # A minimum above what there is means all.
    tracker, wait = waiting(1, 5)
    assert wait.over(1.0) is None
    tracker.accept(result(0))
    assert wait.over(1.0) is WaitOutcome.COMPLETE


def test_results_that_another_caller_took_are_not_enough_any_more() -> None:
    tracker, wait = waiting(3, 1)
    tracker.accept(result(0))
    assert wait.over(1.0) is None
    tracker.take(tracker.completed())
    assert wait.over(40.0) is None
    assert wait.pause(40.0) == 60.0
    tracker.accept(result(1))
    assert wait.over(41.0) is None
    assert wait.over(71.0) is WaitOutcome.ENOUGH


@given(gaps=st.lists(st.integers(0, 9), max_size=20))
def test_each_result_gives_the_others_the_whole_time_again(gaps: list[int]) -> None:
    tracker = BatchTracker(1)
    tracker.schedule([task(n) for n in range(len(gaps) + 1)])
    wait, now = WaitAll([tracker], 0.0, 10.0), 0.0
    for number, gap in enumerate(gaps):
        now += gap
        assert wait.over([tracker], now) is None
        tracker.accept(result(number))
        assert wait.over([tracker], now) is None
        assert wait.pause(now) == 10.0
    assert wait.over([tracker], now + 9.99) is None
    assert wait.over([tracker], now + 10.0) is WaitOutcome.TIMEOUT
    tracker.accept(result(len(gaps)))
    assert wait.over([tracker], now + 10.0) is WaitOutcome.COMPLETE


def test_messages_are_those_that_callers_know() -> None:
    assert status_of(result(0)).message is None
    assert status_of(result(0)).ok
    partial = status_of(result(0, 3, 8, "ValueError: no"))
    assert partial.message == "3/8 runs completed successfully. First error: ValueError: no"
    assert (partial.ok, partial.completed_runs, partial.total_runs, partial.metrics) == (False, 3, 8, [{"reward": 1.0}])
    cut = status_of(result(0, 3, 8, CLEANUP))
    assert cut.message == "3/8 runs completed successfully. Remaining runs were cancelled during scheduler cleanup."
    failed = status_of(result(0, 0, 8, "TimeoutError"))
    assert failed.message == "0/8 runs completed successfully. First error: TimeoutError"
    assert failed.metrics == [{}]


def test_a_refused_task_fails_with_the_runs_that_it_would_have_had() -> None:
    tracker = BatchTracker(1, default_runs=4)
    tracker.schedule([task(0), task(1, runs=2)])
    for name in ("b#0", "b#1"):
        assert tracker.accept(Rejection(name, "unknown_workflow: none"))
    statuses: list[Any] = [wrapper.status for wrapper in tracker.completed()]
    assert [status.total_runs for status in statuses] == [4, 2]
    assert statuses[0].message == "0/4 runs completed successfully. First error: unknown_workflow: none"
