"""Demonstrations and preferences as samples, made up."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tests.support.training.samples import train_sample
from trinity_bus.training.steps.packing import TrainSample

_PROMPT, _LONGEST = 3, 9


def _answer(rng: np.random.Generator, vocabulary: int, prompt: Sequence[int]) -> TrainSample:
    length = int(rng.integers(2, _LONGEST))
    mask = np.ones(length, np.bool_)
    mask[1] = length == 2  # what was told to the model within an answer of several turns
    tokens, ones = [*prompt, *rng.integers(0, vocabulary, length)], np.ones(length, np.float32)
    return train_sample(tokens, len(prompt), mask=mask, advantages=ones, temperature=1.0, drawn=False)


def demonstrations(
    count: int, *, seed: int = 0, vocabulary: int = 31, weights: Sequence[float] = ()
) -> list[TrainSample]:
    """Random answers to random prompts."""
    rng = np.random.default_rng(seed)
    found = [_answer(rng, vocabulary, rng.integers(0, vocabulary, _PROMPT).tolist()) for _ in range(count)]
    return [replace(one, scale=weights[i] if weights else 1.0) for i, one in enumerate(found)]


def preferences(count: int, *, seed: int = 0, vocabulary: int = 31, weights: Sequence[float] = ()) -> list[TrainSample]:
    """Two random answers to each of some random prompts."""
    rng = np.random.default_rng(seed)
    found = []
    for pair in range(count):
        prompt = rng.integers(0, vocabulary, _PROMPT).tolist()
        both = [_answer(rng, vocabulary, prompt) for _ in range(2)]
        scale = (weights[pair] if weights else 1.0) / sum(one.trained_tokens for one in both)
        found += [
            replace(one, scale=scale, pair=pair, advantages=sign * one.advantages)
            for one, sign in zip(both, (1, -1), strict=True)
        ]
    return found
