"""Answers of the forms in which public sets of mathematics and models write them, and answers that are like them."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trinity_bus.rollout.equivalence import Checker
from trinity_bus.rollout.rewards import compare, math_reward, normalize

_DATA = Path(__file__).parents[2] / "data/answers.jsonl"
PAIRS = [json.loads(line) for line in _DATA.read_text(encoding="utf-8").splitlines()]
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


@given(st.text("0123456789{}\\boxed$*(", max_size=3000))
def test_the_time_of_a_judgement_is_bounded(text: str) -> None:
    async def nobody(one: str, other: str) -> bool:
        return False

    assert asyncio.run(math_reward(text, "x+1", nobody)) in {0.0, 1.0}


def test_the_table_of_the_manual_is_so(checker: Checker) -> None:
    manual = (Path(__file__).parents[3] / "docs/workflows.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.*`) \| (`.*`) \| ([01]) \|", manual, re.MULTILINE)
    assert len(table) == 20
    for responses, references, reward in table:
        for response in re.findall(r"`([^`]+)`", responses):
            for wanted in re.findall(r"`([^`]+)`", references):
                found = asyncio.run(math_reward(response, wanted, checker.same))
                assert (response, wanted, found) == (response, wanted, float(reward))


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("The answer is (B).", "B", 1.0),
        ("The answer is B.", "B", 1.0),
        ("**B**", "B", 1.0),
        ("B) text", "B", 1.0),
        ("The correct option is **(B)**", "B", 1.0),
        ("Answer: C", "B", 0.0),
        ("A is wrong. So it must be (B).", "B", 1.0),
        ("The answer is A or B.", "B", 0.0),
        ("The answer is $\\text{B}$.", "B", 1.0),
        ("B", "B", 1.0),
        ("Answer: B. 12", "B", 1.0),
        ("The answer is A car.", "A", 0.0),
        ("I choose B, since A is wrong.", "B", 1.0),
        ("**Answer: B**", "B", 1.0),
        ("The answer is: B) Paris", "B", 1.0),
        ("Because A", "B", 0.0),
        ("Final Answer: \\boxed{\\text{B. Paris}}", "B", 1.0),
        ("The answer is Boston", "B", 0.0),
        ("(A) or (B)", "B", 0.0),
        ("The best answer is (D)", "(D)", 1.0),
        ("The answer is $\\frac{1}{2}$.", "2", 0.0),
        ("The answer is $\\frac{1}{2}$.", "1/2", 1.0),
        ("The answer is \\frac25.", "0.4", 1.0),
        ("The area is 2x.", "2", 0.0),
        ("The answer is x^2 + 3x + 5.", "5", 0.0),
        ("The answer is x^2 + 3x + 5.", "x^2+3x+5", 1.0),
        ("The answer is $2\\sqrt{3}$", "3", 0.0),
        ("The answer is $2\\sqrt{3}$", "\\sqrt{12}", 1.0),
        ("The answer is 1.2e-3", "3", 0.0),
        ("It is 1.2e-3.", "0.0012", 1.0),
        ("It is 10^5.", "5", 0.0),
        ("It is 10^5", "100000", 1.0),
        ("It is 1{,}000", "1000", 1.0),
        ("It is 1{,}000", "0", 0.0),
        ("It is 1\\,000.", "1000", 1.0),
        ("It is $1\\,000$.", "1000", 1.0),
        ("It is 1 1/2", "1/2", 0.0),
        ("It is 1 1/2.", "1.5", 1.0),
        ("It is 1\\frac{1}{2}", "3/2", 1.0),
        ("It is 50%.", "50", 1.0),
        ("It is $18.00 per day.", "18", 1.0),
        ("She makes $18.", "18", 1.0),
        ("She makes 18 dollars every day.", "18", 1.0),
        ("It takes 5 hours.", "5", 1.0),
        ("The temperature is -8 degrees", "-8", 1.0),
        ("It is - 8 degrees", "8", 0.0),
        ("**Answer:** **42**", "42", 1.0),
        ("$\\mathbf{42}$", "42", 1.0),
        ("The interval is (1, 2]", "2", 0.0),
        ("The interval is (1, 2]", "(1,2]", 1.0),
        ("It is \\(x = 5\\).", "5", 1.0),
        ("x = 3 or x = -5", "3, -5", 0.0),
        ("It is 5 x 10^3.", "3", 0.0),
        ("It is 5 \u00d7 10³ m.", "5000", 1.0),
        ("It is 10².", "100", 1.0),
        ("It is x².", "2", 0.0),
        ("5 - 3 = 2", "2", 1.0),
        ("the ratio is 3:4", "4", 0.0),
        ("the ratio is 3:4", "3:4", 1.0),
        ("48/2 = <<48/2=24>>24 clips.", "24", 1.0),
        ("so 24 clips in 2 months, 12:30", "30", 0.0),
        ("It's $\\boxed{42}$ cm.", "42 cm", 1.0),
        ("#### **42**", "42", 1.0),
        ("#### $1,000", "1000", 1.0),
        ("#### 5 apples", "5", 1.0),
        ("The final answer is $\\boxed{x=5}$", "5", 1.0),
        ("So we get \\[ x = 7 \\]", "7", 1.0),
        ("$n=3$, so $2^n = 8$.", "8", 1.0),
        ("He needs 5 more.", "5", 1.0),
        ("- 5 apples\n- 6 pears\nTotal: 11", "11", 1.0),
        ("Total is 11 (eleven).", "11", 1.0),
        ("the answer is 5.0.", "5", 1.0),
        ("1/3 of 9 is 3", "3", 1.0),
        ("it is log_2(8)", "8", 0.0),
        ("sin(30)", "30", 0.0),
        ("f(x) = 2x + 3", "3", 0.0),
        ("|x| = 5", "5", 1.0),
        ("is 3!.", "3", 1.0),
        ("$3!$", "3", 0.0),
        ("3\\%", "3", 1.0),
        ("x > 5", "5", 0.0),
        ("It is at least $5$.", "5", 1.0),
        ("x \\ge 5.", "5", 0.0),
        ("Thus, Tom has 12-3 = 9 apples", "9", 1.0),
        ("It was 2023-05-01", "1", 0.0),
        ("so 5,", "5", 1.0),
        ("it is 5\n\n", "5", 1.0),
        ("He is 12 years old.", "12", 1.0),
        ("Room 5A", "5", 0.0),
        ("So she needs $5 + $6 = $11", "11", 1.0),
        ("She pays $5.50 + $3.", "3", 0.0),
        ("$\\frac{3}{4}$ of it", "4", 0.0),
        ("it is -\\frac{3}{4}", "3/4", 0.0),
        ("it is - \\frac{3}{4}", "-3/4", 1.0),
        ("\\boxed{12} \\text{ cm}", "12", 1.0),
        ("\\boxed{\\{1,2\\}}", "{1, 2}", 1.0),
        ("\\boxed{3}, \\boxed{3}", "3", 1.0),
        ("\\boxed{x=3} and \\boxed{x=-5}", "3,-5", 1.0),
        ("First \\boxed{3}. Hence after all \\boxed{5}", "5", 1.0),
        ("$\\boxed{3}$ or $\\boxed{5}$", "5", 0.0),
        ("\\boxed{3}\\text{ and }\\boxed{5}", "3, 5", 1.0),
        ("\\boxed{3} \\quad \\boxed{5}", "3, 5", 1.0),
        ("\\boxed{\\text{(B)}}", "B", 1.0),
        ("\\boxed{\\text{B) 12}}", "B", 1.0),
        ("\\boxed{B, C}", "B", 0.0),
        ("\\boxed{\\text{Option B}}", "B", 1.0),
        ("\\boxed{\\text{even}}", "even", 1.0),
        ("\\boxed{\\text{Yes}}", "yes", 1.0),
        ("\\boxed{6:00 \\text{ PM}}", "6:00 PM", 1.0),
        ("\\boxed{6:00}", "6", 0.0),
        ("\\boxed{3.0 \\times 10^{8} \\mathrm{~m} / \\mathrm{s}}", "3e8", 1.0),
        ("\\boxed{1.6\\times10^{-19}\\ \\text{C}}", "1.6e-19", 1.0),
        ("\\boxed{2.3\\,\\%}", "2.3", 1.0),
    ],
)
def test_the_answer_of_a_response_is_found_whole(checker: Checker, response: str, answer: str, reward: float) -> None:
    assert asyncio.run(math_reward(response, answer, checker.same)) == reward
