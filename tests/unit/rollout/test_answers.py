"""Answers of the forms in which public sets of mathematics and models write them, and answers that are like them;
formulas that mean the same, found out by math-verify in a process that can be ended.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trinity_bus.rollout.equivalence import Checker, EquivalenceError
from trinity_bus.rollout.rewards import compare, math_reward, normalize

_DATA = Path(__file__).parents[2] / "data"
PAIRS = [json.loads(line) for line in (_DATA / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
WRITTEN = sorted({pair[side] for pair in PAIRS for side in ("answer", "reference")})
NUMBERS = sorted({one["reference"] for one in PAIRS if one["kind"] in {"fraction", "scientific", "mixed"}})


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    made = Checker(limit_s=30)
    yield made
    made.close()


@pytest.mark.parametrize("kind", sorted({pair["kind"] for pair in PAIRS}))
def test_each_pair_is_judged_as_it_is_labelled(checker: Checker, kind: str) -> None:
    pairs = [pair for pair in PAIRS if pair["kind"] == kind]

    async def judge() -> list[float]:
        return [await math_reward(rf"So \boxed{{{one['answer']}}}.", one["reference"], checker.same) for one in pairs]

    rewards = asyncio.run(judge())
    assert [one for one, reward in zip(pairs, rewards, strict=True) if (reward == 1.0) != one["equal"]] == []


def test_a_third_of_the_pairs_and_more_are_not_equal() -> None:
    assert len(PAIRS) >= 400
    assert sum(not pair["equal"] for pair in PAIRS) * 3 >= len(PAIRS)


def test_normalizing_again_changes_nothing() -> None:
    assert [text for text in WRITTEN if normalize(normalize(text)) != normalize(text)] == []


@given(st.one_of(st.text(max_size=80), st.text("0123456789.,-+ /\\{}()[]$%*_^e=x\u2212\u00d7\u00bd", max_size=40)))
def test_normalizing_anything_again_changes_nothing(text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


@given(st.sampled_from(WRITTEN), st.sampled_from(WRITTEN))
def test_what_is_decided_without_mathematics_is_decided_alike_both_ways(one: str, other: str) -> None:
    verdicts = compare(one, other), compare(other, one)
    assert (verdicts[0] is True) == (verdicts[1] is True)


DECORATIONS = (
    r"**{}**", r"$ {} $", "${}$", r"\({}\)", r"\[ {} \]", r"\mathbf{{{}}}", r"\displaystyle {}", " {}. ", r"{{{}}}",
    r"\left({}\right)",
)  # fmt: skip


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(DECORATIONS))
def test_a_decoration_changes_no_verdict(one: str, other: str, decoration: str) -> None:
    # A comma within brackets separates elements: (100,000) is a point.
    assume("," not in one or r"\left" not in decoration)
    assert (compare(decoration.format(one), other) is True) == (compare(one, other) is True)
    assert (compare(other, decoration.format(one)) is True) == (compare(other, one) is True)


@given(
    st.fractions(max_denominator=10**4),
    st.sampled_from(("-", "\u2212", "- ", "\u2212 ", "\uff0d")),
    st.sampled_from(("", r" \text{ cm}", "%", " dollars", r"^\circ")),
)
def test_a_sign_changes_the_verdict_of_every_number_but_nought(value: object, sign: str, unit: str) -> None:
    plain = str(abs(value))  # type: ignore[arg-type]
    assert compare(f"{sign}{plain}{unit}", f"-{plain}") is True
    assert (compare(f"{sign}{plain}{unit}", plain) is True) == (plain == "0")


def test_the_table_of_the_manual_is_so(checker: Checker) -> None:
    manual = (Path(__file__).parents[3] / "docs/workflows.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.*`) \| (`.*`) \| ([01]) \|", manual, re.MULTILINE)
    assert len(table) == 22
    for responses, references, reward in table:
        for response in re.findall(r"`([^`]+)`", responses):
            for wanted in re.findall(r"`([^`]+)`", references):
                found = asyncio.run(math_reward(response, wanted, checker.same))
                assert (response, wanted, found) == (response, wanted, float(reward))


def test_the_answer_of_a_response_is_found_whole(checker: Checker) -> None:
    rows = [json.loads(line) for line in (_DATA / "responses.jsonl").read_text(encoding="utf-8").splitlines()]

    async def judge() -> list[float]:
        return [await math_reward(row["response"], row["answer"], checker.same) for row in rows]

    assert [
        row for row, reward in zip(rows, asyncio.run(judge()), strict=True) if (reward == 1.0) != row["right"]
    ] == []


TOWER = "9^{9^{9^9}}"
"""Sympy computes it for ever."""


@pytest.fixture(scope="module")
def quick() -> Iterator[Checker]:
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


def test_what_takes_too_long_is_not_the_same_and_the_next_question_is_answered(quick: Checker) -> None:
    assert asyncio.run(quick.same(TOWER, "x+1")) is False
    assert asyncio.run(quick.same("1 + x", "x+1")) is True


def test_what_sympy_cannot_compare_ends_nothing(checker: Checker) -> None:
    assert asyncio.run(checker.same("1 + x", "x+1")) is True
    process = checker._process
    assert asyncio.run(checker.same(r"\frac{1}{0}", r"\infty")) is False
    assert checker._process is process


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
