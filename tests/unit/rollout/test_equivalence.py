"""Formulas that mean the same, found out by math-verify in a process that can be ended."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from trinity_bus.rollout.equivalence import Checker, EquivalenceError

TOWER = "9^{9^{9^9}}"
"""Sympy computes it for ever."""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    made = Checker()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", True),
        ("(x+1)^2", "x^2 + 2x + 1", True),
        (r"\{3, 2, 1\}", r"\{1, 2, 3\}", True),
        ("(1,2)", "(1, 2)", True),
        ("(2,1)", "(1, 2)", False),
        (r"6.28", r"2\pi", False),
        ("x + 2", "x + 1", False),
        (r"\frac{", r"\frac{1}{2}x", False),
        ("", "x+1", False),
        ("$\n", "x+1", False),
    ],
)
def test_formulas_are_compared_by_what_they_mean(checker: Checker, given: str, wanted: str, same: bool) -> None:
    assert asyncio.run(checker.same(given, wanted)) is same


def test_what_takes_too_long_is_not_the_same_and_the_next_question_is_answered(checker: Checker) -> None:
    assert asyncio.run(checker.same(TOWER, "x+1")) is False
    assert asyncio.run(checker.same("1 + x", "x+1")) is True


def test_a_long_answer_is_not_looked_at() -> None:
    assert asyncio.run(Checker().same("x" * 513, "x+1")) is False


def test_the_death_of_the_process_is_not_an_answer_for_good(checker: Checker) -> None:
    assert asyncio.run(checker.same("1 + x", "x+1")) is True
    assert checker._process is not None
    os.kill(checker._process.pid, signal.SIGKILL)
    checker._process.wait()
    assert asyncio.run(checker.same("1 + x", "x+1")) is False
    assert asyncio.run(checker.same("1 + x", "x+1")) is True


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(EquivalenceError, match="explorer-cpu and explorer-gpu"):
        asyncio.run(Checker().same("1 + x", "x+1"))
