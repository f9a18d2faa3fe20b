import asyncio
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trinity_bus.rollout.rewards import compare, extract_answer, math_reward, normalize, parse_number, sequence_reward


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3 + 4 = 7", "7"),
        ("3 + 4 = 7 because 2 and 5 = 7 apples", "7"),
        (r"so \boxed{12} and not 13", "12"),
        (r"\boxed{1} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{3} \boxed{4", "4"),
        ("9 * 9 = 81\n#### 1,234\nthanks", "1,234"),
        ("between 3-4", "3-4"),
        ("x = -0.5", "-0.5"),
        ("x = .5", ".5"),
        ("x = 12,345,678", "12,345,678"),
        ("1,2345", "1,2345"),
        ("5-year old", "5"),
        ("5.Thus it ends", "5"),
        ("1.aa0", "1.aa0"),
        ("1-aa0", "1-aa0"),
        ("no idea", None),
        ("####", None),
        ("", None),
    ],
)
def test_finds_the_final_answer_as_people_mark_it(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234", Fraction(1234)), ("0.50", Fraction(1, 2)), ("1/2", Fraction(1, 2)), (r"\frac{1}{2}", Fraction(1, 2)),
        (r"\dfrac{-1}{2}", Fraction(-1, 2)), ("$ 5.", Fraction(5)), ("+3", Fraction(3)), ("1/0", None),
        ("1e9", Fraction(10**9)), ("1e999", None), ("12,34", None), ("x", None), ("", None), ("9" * 65, None),
    ],
)  # fmt: skip
def test_numbers_are_exact_and_nothing_else_is_a_number(text: str, number: Fraction | None) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("= 0.5", "1/2", 1.0),
        ("= 0.50000001", "1/2", 0.0),
        (r"\boxed{x + 1}", "x+1", 1.0),
        (r"\boxed{\text{Paris}}", "paris", 1.0),
        ("it is 72", "48+24=72\n#### 72", 1.0),
        (r"it is 3", r"so \boxed{3}", 1.0),
        ("no number at all", "72", 0.0),
        ("1e999999999", "10", 0.0),
        (r"\boxed{48 + 24}", "72", 0.0),
    ],
)
def test_math_reward(response: str, answer: str, reward: float) -> None:
    assert asyncio.run(math_reward(response, answer, nobody_is_asked)) == reward


async def nobody_is_asked(given: str, wanted: str) -> bool:
    raise AssertionError((given, wanted))


async def different(given: str, wanted: str) -> bool:
    del given, wanted
    return False


@example("1.aa0")
@example("1-aa0")
@given(st.text("0123456789.,/+-)(ta=$*\\{} \n\u2003", max_size=60))
def test_the_answer_has_the_last_digit_of_all(text: str) -> None:
    found = extract_answer(text)
    digits = [one for one in text if one in "0123456789"]
    assert (found is None) == (not digits)
    if "=" not in text:
        assert not digits or digits[-1] in str(found)


@given(st.from_regex(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", fullmatch=True))
def test_a_plain_number_is_what_it_would_be_among_others(number: str) -> None:
    assert normalize(number) == normalize(f" {number} ") == number
    assert extract_answer(number) == extract_answer(f"It is {number}") == number


@given(st.text(max_size=200) | st.text("0123456789{}\\boxed$*(", max_size=3000), st.text(max_size=50) | st.just("x+1"))
def test_math_reward_takes_whatever_a_model_writes_and_soon(response: str, answer: str) -> None:
    assert asyncio.run(math_reward(response, answer, different)) in {0.0, 1.0}


def test_formulas_are_compared_by_who_knows_mathematics() -> None:
    asked = []

    async def same(given: str, wanted: str) -> bool:
        asked.append((given, wanted))
        return True

    assert asyncio.run(math_reward(r"so \boxed{(x+1)^2}", r"thus \boxed{x^2 + 2x + 1}", same)) == 1.0
    assert asked == [("(x+1)^2", "x^2 + 2x + 1")]


@given(st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**6))
def test_a_number_equals_itself_however_written(value: Fraction) -> None:
    plain, latex = f"{value.numerator}/{value.denominator}", rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    assert compare(plain, latex) is True
    assert not compare(plain, f"{value.numerator + 1}/{value.denominator}")


@pytest.mark.parametrize(
    ("response", "ended", "reward"),
    [
        ("3 1 4", True, 1.0), ("3 1 4", False, 0.75), ("3 1", True, 0.5), ("3 1 4 1", False, 0.75),
        ("3 1 4 1 5", True, 3 / 6), ("1 3 4", True, 0.5), ("", True, 0.0), ("", False, 0.0),
    ],
)  # fmt: skip
def test_sequence_reward_is_the_share_of_places_that_are_right(response: str, ended: bool, reward: float) -> None:
    assert sequence_reward(response, "3 1 4", ended=ended) == pytest.approx(reward)


words = st.lists(st.sampled_from("abc"), max_size=8)


@given(words, words, st.booleans())
def test_only_the_answer_itself_earns_everything(given_words: list[str], wanted: list[str], ended: bool) -> None:
    reward = sequence_reward(" ".join(given_words), " ".join(wanted), ended=ended)
    assert 0.0 <= reward <= 1.0
    assert (reward == 1.0) == (given_words == wanted and ended)
