from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from schemas import Task, TaskResult
from tests.support.fakes.mesh_records import task_result
from trinity_bus.client.results import CLEANUP, BatchTracker, Rejection, status_of


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
    """Tasks are scheduled, end, end twice, are refused or given up; callers take what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = BatchTracker("b")
        self.scheduled: list[int] = []
        self.ended: set[int] = set()
        self.given_up: set[int] = set()
        self.taken: list[int] = []

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

    @rule()
    def take(self) -> None:
        wrappers = self.tracker.completed()
        self.tracker.take(wrappers)
        numbers = [int(wrapper.task_id) for wrapper in wrappers]
        assert numbers == sorted(numbers)
        assert all(wrapper.status is not None for wrapper in wrappers)
        self.taken += numbers

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
