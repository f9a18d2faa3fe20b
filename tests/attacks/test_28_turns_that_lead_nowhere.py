"""Turns that a workflow, or a neighbour, has written so that whoever goes on from them is at it for hours.

An explorer finds the turns of earlier attempts between two heartbeats: while it looks, it says nothing.
"""

import time

from schemas.turn import Turn, chain

ENOUGH_S = 2.0
"""It takes well below one second."""
MANY = 12_000


def _turn(number: int, attempt: int = 1, after: int = 1) -> Turn:
    return Turn(
        task_id="t",
        attempt=attempt,
        run_id=0,
        number=number,
        after=after,
        workflow="w",
        explorer="e",
        incarnation="i",
        answers=[],
    )


def test_turns_without_a_first_one_are_passed_over_at_once() -> None:
    turns = [_turn(number) for number in range(1, MANY)]
    began = time.process_time()
    assert chain(turns) == []
    assert time.process_time() - began < ENOUGH_S


def test_many_attempts_that_end_in_the_same_dead_end_are_passed_over_at_once() -> None:
    stem = [_turn(number) for number in range(1, MANY // 2)]
    leaves = [_turn(MANY // 2, attempt) for attempt in range(2, MANY // 2)]
    began = time.process_time()
    assert chain([*stem, *leaves, _turn(0, attempt=7, after=0)]) == [_turn(0, attempt=7, after=0)]
    assert time.process_time() - began < ENOUGH_S
