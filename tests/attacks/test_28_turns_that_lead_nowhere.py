"""Turns that a workflow, or a neighbour, has written so that whoever goes on from them is at it for hours.

An explorer finds the turns of earlier attempts between two heartbeats: while it looks, it says nothing.
"""

import time

from schemas.turn import chain
from tests.support.fakes.turns import turn

ENOUGH_S = 2.0
"""It takes well below one second."""
MANY = 12_000


def test_turns_without_a_first_one_are_passed_over_at_once() -> None:
    turns = [turn(number, 1, after=1) for number in range(1, MANY)]
    began = time.process_time()
    assert chain(turns) == []
    assert time.process_time() - began < ENOUGH_S


def test_many_attempts_that_end_in_the_same_dead_end_are_passed_over_at_once() -> None:
    stem = [turn(number, 1, after=1) for number in range(1, MANY // 2)]
    leaves = [turn(MANY // 2, attempt, after=1) for attempt in range(2, MANY // 2)]
    began = time.process_time()
    assert chain([*stem, *leaves, turn(0, 7)]) == [turn(0, 7)]
    assert time.process_time() - began < ENOUGH_S
