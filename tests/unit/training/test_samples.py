import inspect
from collections.abc import Callable

import numpy as np
import pytest

from schemas import ExperienceGroup
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.samples import prepare


def replace(original: ExperienceGroup, **changes: np.ndarray) -> ExperienceGroup:
    fields = inspect.signature(ExperienceGroup).parameters
    return ExperienceGroup(**{name: getattr(original, name) for name in fields} | changes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda g: {"tokens": g.tokens + 100}, "vocabulary is 32", id="token ids"),
        pytest.param(lambda g: {"tokens": g.tokens - 100}, "vocabulary is 32", id="negative token ids"),
        pytest.param(lambda g: {"logprobs": g.logprobs * np.float32(np.nan)}, "not finite", id="logprobs"),
        pytest.param(lambda g: {"rewards": g.rewards + np.float32(np.inf)}, "finite or NaN", id="rewards"),
    ],
)
def test_what_the_model_cannot_train_on_is_named(
    group: Callable[..., ExperienceGroup], damage: Callable[[ExperienceGroup], dict[str, np.ndarray]], message: str
) -> None:
    good = group(task_id="task-7")
    with pytest.raises(TrainingError, match=f"task task-7, attempt 1.*{message}"):
        prepare([replace(good, **damage(good))], version=0, vocabulary=32, normalize_std=True)


def test_a_sample_needs_a_prompt(group: Callable[..., ExperienceGroup]) -> None:
    whole = group()
    logprobs = np.zeros(len(whole.tokens), np.float32)
    bare = replace(
        whole,
        prompt_lengths=np.zeros(len(whole), np.int32),
        logprobs=logprobs,
        mask_bits=np.packbits(np.ones(len(logprobs), np.bool_)),
    )
    with pytest.raises(TrainingError, match="no prompt"):
        prepare([bare], version=0, vocabulary=32, normalize_std=True)
