from typing import Any

import msgspec
import numpy as np
import pytest

from schemas import ExperienceGroup
from schemas.groups.trainable import Bounds, FlawKind, flaws
from tests.unit.schemas.record_strategies import full_group

BOUNDS = Bounds(vocabulary=100, positions=100)


def changed(name: str, index: Any, value: float) -> ExperienceGroup:
    column = getattr(full_group(), name).copy()
    column[index] = value
    return msgspec.structs.replace(full_group(), **{name: column})


def test_what_is_not_known_not_trained_on_or_of_no_experts_is_no_flaw() -> None:
    assert flaws(full_group(), BOUNDS) == []
    assert flaws(full_group(), Bounds(100, 100, experts=256)) == []
    assert not next(full_group().samples()).mask[1]
    assert flaws(changed("teacher_logprobs", 1, np.inf), BOUNDS) == []
    few = Bounds(100, 100, experts=30)
    assert [flaw.kind for flaw in flaws(full_group(), few)] == [FlawKind.BAD_ROUTES]
    assert "expert 31 is not one of the model's 0 to 29" in flaws(full_group(), few)[0].detail


@pytest.mark.parametrize(
    ("name", "index", "value", "kind", "detail"),
    [
        ("turn_rewards", 0, np.inf, FlawKind.BAD_REWARD, "the reward inf of a turn is beyond"),
        ("turn_rewards", 1, -2e9, FlawKind.BAD_REWARD, "the reward -2e\\+09 of a turn is beyond"),
        ("sampling", (0, 0), -1, FlawKind.BAD_SAMPLING, "nothing is drawn with SampledWith\\(temperature=-1"),
        ("sampling", (0, 0), np.nan, FlawKind.BAD_SAMPLING, "temperature=nan"),
        ("sampling", (0, 0), 11, FlawKind.BAD_SAMPLING, "temperature=11"),
        ("sampling", (0, 1), 0, FlawKind.BAD_SAMPLING, "top_p=0"),
        ("sampling", (0, 2), np.inf, FlawKind.BAD_SAMPLING, "top_k=inf"),
        ("sampling", (0, 3), 1.5, FlawKind.BAD_SAMPLING, "min_p=1.5"),
        ("teacher_logprobs", 0, np.nan, FlawKind.BAD_TEACHER, "nan is no log-probability"),
        ("teacher_logprobs", 0, -np.inf, FlawKind.BAD_TEACHER, "-inf is no log-probability"),
        ("teacher_logprobs", 2, 0.5, FlawKind.BAD_TEACHER, "0.5 is no log-probability"),
        ("kept", 1, 1, FlawKind.BAD_KEPT, "token id 0 is not among the 2 that it was drawn from"),
        ("kept", 2, 0, FlawKind.BAD_KEPT, "an id twice"),
        ("kept", 0, 9, FlawKind.BAD_KEPT, "sets of kept tokens"),
        ("kept", 0, 200, FlawKind.BAD_KEPT, "sets of kept tokens"),
        ("kept", -1, 127, FlawKind.BAD_KEPT, "token id 217, which was kept, is not one of the model's 0 to 99"),
    ],
)
def test_values_that_are_none_are_flaws(name: str, index: Any, value: float, kind: FlawKind, detail: str) -> None:
    (flaw,) = flaws(changed(name, index, value), BOUNDS)
    assert (flaw.sample, flaw.kind) == (0, kind)
    with pytest.raises(AssertionError, match=detail):
        raise AssertionError(flaw.detail)
