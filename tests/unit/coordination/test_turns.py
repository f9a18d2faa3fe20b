"""Where the turns of a task lie: told by heartbeats, kept over restarts, said to the next attempt, and not deleted."""

from schemas import Position, RunningAttempt
from schemas.topics import TURNS
from tests.support.simulation.harness import Harness, dispatches
from tests.unit.coordination.test_retention import look, twice
from trinity_bus.coordination import Retention
from workers.coordinator.retention import first_turns


def place(offset: int) -> Position:
    return Position(partition=3, offset=offset)


def beat(harness: Harness, attempt: int, offset: int, name: str = "e0", incarnation: str = "1") -> None:
    harness.beat(name, incarnation, running=[RunningAttempt(task_id="a", attempt=attempt, turns=place(offset))])


def test_the_next_attempt_is_told_where_the_first_turn_lies_whatever_restarts() -> None:
    harness = Harness(batch_size=1, max_attempts=4).begun()
    (first,) = dispatches(harness.task("a"))
    assert first.turns is None
    beat(harness, 1, 17)
    harness.restart()
    assert list(first_turns(harness.machine)) == [place(17)]
    (second,) = dispatches(harness.beat(incarnation="2"))
    assert (second.attempt, second.turns) == (2, place(17))
    harness.restart()
    beat(harness, 2, 29, incarnation="2")
    (third,) = dispatches(harness.beat(incarnation="3"))
    assert (third.attempt, third.turns) == (3, place(17)), "of all attempts the first"
    harness.finished("a", incarnation="3", attempt=3)
    assert list(first_turns(harness.machine)) == []


def test_what_an_explorer_says_of_attempts_that_are_not_its_own_is_passed_over() -> None:
    harness = Harness(batch_size=1).begun("a")
    beat(harness, 1, 17, name="e1")
    beat(harness, 9, 17)
    assert list(first_turns(harness.machine)) == []


def test_turns_are_deleted_when_they_are_old_and_no_open_task_needs_them() -> None:
    aged = {(TURNS.name, 3): 40, (TURNS.name, 4): 5}
    assert twice(Retention(), look(aged=aged)) == {(TURNS.name, 3): 40, (TURNS.name, 4): 5}
    kept = twice(Retention(), look(aged=aged, turns=[place(29), place(17)]))
    assert kept == {(TURNS.name, 3): 17, (TURNS.name, 4): 5}
