import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._soak.growth import grows, growth

MINUTES = [60.0 * number for number in range(12)]


def test_what_only_fills_in_the_warm_up_does_not_grow() -> None:
    assert growth([(at, min(at, 200.0)) for at in MINUTES]) == 0


def test_what_rises_steadily_grows_by_what_it_rises_after_the_warm_up() -> None:
    assert growth([(at, 100 + at / 60) for at in MINUTES]) == pytest.approx(7)


@given(st.integers(4, 11), st.floats(-1e6, 1e6))
def test_one_point_that_is_far_off_is_no_growth(which: int, value: float) -> None:
    points = [(at, 5.0) for at in MINUTES]
    points[which] = MINUTES[which], value
    assert growth(points) == 0


def test_a_saw_tooth_is_no_growth() -> None:
    assert abs(growth([(60.0 * number, 50.0 * (number % 3)) for number in range(36)])) < 50


def test_one_point_tells_nothing() -> None:
    with pytest.raises(ValueError, match="1 points are too few"):
        growth([(0.0, 1.0)])


@pytest.mark.parametrize("seed", range(20))
def test_what_swings_about_the_same_does_not_grow(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    assert not grows([(60.0 * number, chance.uniform(0, 60)) for number in range(288)])


def test_what_swings_and_rises_by_more_grows() -> None:
    assert grows([(60.0 * number, number + 5.0 * (number % 3)) for number in range(90)])
    assert not grows([(60.0 * number, number / 100 + 5.0 * (number % 3)) for number in range(90)])
