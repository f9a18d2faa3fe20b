import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from schemas import ExperienceGroup
from schemas.trainable import Bounds
from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives.advantages.grpo import GRPO
from trinity_bus.training.samples import prepare

ADVANTAGE = GRPO(TrainerSettings())
BOUNDS = Bounds(vocabulary=32, positions=128)


def replace(original: ExperienceGroup, **changes: np.ndarray) -> ExperienceGroup:
    fields = inspect.signature(ExperienceGroup).parameters
    return ExperienceGroup(**{name: getattr(original, name) for name in fields} | changes)


FLAWS: list[Any] = [
    pytest.param(lambda g: {"tokens": _at(g.tokens, 0, 32)}, "bad_token", "token id 32 is not", id="beyond"),
    pytest.param(lambda g: {"tokens": _at(g.tokens, 0, -1)}, "bad_token", "token id -1 is not", id="negative"),
    *(
        pytest.param(
            lambda g, value=value: {"logprobs": _at(g.logprobs, 0, value)}, "bad_logprob", "no log-probability", id=name
        )
        for name, value in (("nan", np.nan), ("inf", np.inf), ("-inf", -np.inf), ("positive", 0.5))
    ),
    *(
        pytest.param(
            lambda g, value=value: {"rewards": _at(g.rewards, 0, value)}, "bad_reward", "reward", id=f"{value}"
        )
        for value in (np.inf, -np.inf, 3e38)
    ),
]


def _at(array: np.ndarray, index: int, value: float) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


@pytest.mark.parametrize(("damage", "kind", "detail"), FLAWS)
def test_a_flawed_sample_is_left_out_as_if_it_had_never_been_drawn(
    group: Callable[..., ExperienceGroup],
    damage: Callable[[ExperienceGroup], dict[str, np.ndarray]],
    kind: str,
    detail: str,
) -> None:
    good = group(task_id="task-7")
    poisoned = prepare([replace(good, **damage(good))], version=0, bounds=BOUNDS, advantage=ADVANTAGE)
    without = prepare(
        [replace(good, rewards=_at(good.rewards, 0, np.nan))], version=0, bounds=BOUNDS, advantage=ADVANTAGE
    )
    assert [sample.advantages.tolist() for sample in poisoned.samples] == [
        sample.advantages.tolist() for sample in without.samples
    ]
    assert poisoned.metrics == {**without.metrics, "samples_left_out": 1.0, f"samples_left_out/{kind}": 1.0}
    assert len(poisoned.left_out) == 1
    assert poisoned.left_out[0].startswith("task task-7, attempt 1, sample 0: ")
    assert detail in poisoned.left_out[0]


def test_a_group_without_prompts_leaves_nothing(group: Callable[..., ExperienceGroup]) -> None:
    whole = group()
    logprobs = np.zeros(len(whole.tokens), np.float32)
    bare = replace(
        whole,
        prompt_lengths=np.zeros(len(whole), np.int32),
        logprobs=logprobs,
        mask_bits=np.packbits(np.ones(len(logprobs), np.bool_)),
    )
    batch = prepare([bare], version=0, bounds=BOUNDS, advantage=ADVANTAGE)
    assert (batch.samples, batch.metrics["samples_left_out"]) == ([], 4.0)
    assert "no prompt" in batch.left_out[0]


def test_what_is_longer_than_the_model_is_left_out(group: Callable[..., ExperienceGroup]) -> None:
    batch = prepare([group()], version=0, bounds=Bounds(32, 2), advantage=ADVANTAGE)
    assert (batch.samples, batch.metrics["samples_left_out/too_long"]) == ([], 4.0)


def test_nothing_is_asked_of_logprobs_that_are_not_trained_on(group: Callable[..., ExperienceGroup]) -> None:
    whole = group()
    spoiled = replace(whole, logprobs=np.where(whole.mask, whole.logprobs, np.float32(np.nan)))
    batch = prepare([spoiled], version=0, bounds=BOUNDS, advantage=ADVANTAGE)
    assert not whole.mask.all()
    assert batch.left_out == []
    for sample in batch.samples:
        assert np.isfinite(sample.rollout_logprobs).all()
        assert np.isfinite(sample.old_logprobs).all()
