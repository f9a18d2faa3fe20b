"""Advantages of tokens, against the formulas in plain Python."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from schemas.experience import Float32
from tests.support.training.samples import train_sample
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.critic import finish_advantages as finish
from trinity_bus.training.layout import Layout
from trinity_bus.training.objectives.advantages import ScoredSample, TokenAdvantage
from trinity_bus.training.objectives.objective import Objective
from trinity_bus.training.steps.packing import TrainSample

NAN = float("nan")
MASKS = [[True, True, False, True], [False, True], [True, True, True]]


def scored(rewards: list[float]) -> list[ScoredSample]:
    """Two runs of one task, and one of another."""
    return [
        ScoredSample(run=i, reward=r, mask=np.array(m), logprobs=np.zeros(len(m), np.float32))
        for i, (r, m) in enumerate(zip(rewards, MASKS, strict=True))
    ]


def expecting(mask: list[bool], rewards: Float32, seed: int, *, values: bool, reference: bool) -> TrainSample:
    rng, n = np.random.default_rng(seed), len(mask)
    old = -rng.exponential(1.0, n).astype(np.float32)
    ref = (old + rng.normal(0, 0.5, n)).astype(np.float32) if reference else None
    drawn = {"rollout_logprobs": old, "old_logprobs": old, "ref_logprobs": ref}
    expected = rng.normal(0, 1, n).astype(np.float32) if values else None
    return train_sample([0] * (n + 1), 1, mask=np.array(mask), advantages=rewards, **drawn, values=expected)


def finished(
    rewards: list[float], *, values: bool = False, reference: bool = False, **settings: Any
) -> tuple[list[TrainSample], list[TrainSample], dict[str, float]]:
    """The samples before and after, and what is told."""
    objective = Objective(TrainerSettings(**settings))
    assert isinstance(objective.advantage, TokenAdvantage)
    groups = [scored(rewards)[:2], [scored([0.0, 0.0, rewards[2]])[2]]]
    first, second = (found or [] for found in objective.advantage(groups))
    samples = [
        expecting(mask, of_sample, seed, values=values, reference=reference)
        for seed, (mask, of_sample) in enumerate(zip(MASKS, [*first, *second], strict=True))
    ]
    done, told = finish(samples, objective.advantage, objective, Layout.alone(torch.device("cpu")))
    return samples, done, told


def normalized(advantages: list[list[float]]) -> list[list[float]]:
    every = [value for of_sample in advantages for value in of_sample]
    mean = math.fsum(every) / len(every)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in every) / len(every))
    return [[(value - mean) / deviation for value in of_sample] for of_sample in advantages]


def of_trained_tokens(samples: list[TrainSample]) -> list[list[float]]:
    for sample in samples:
        assert (sample.advantages[~sample.mask] == 0).all()
    return [sample.advantages[sample.mask].tolist() for sample in samples]


def check(found: list[TrainSample], expected: list[list[float]]) -> None:
    for ours, theirs in zip(of_trained_tokens(found), normalized(expected), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


def test_reinforce_plus_plus_compares_with_the_whole_batch() -> None:
    _, found, told = finished([1.0, 3.0, 0.5], advantage="reinforce_plus_plus")
    check(found, [[1.0] * 3, [3.0], [0.5] * 3])
    assert told["advantage_mean"] == pytest.approx(7.5 / 7)
    assert (told["advantage_min"], told["advantage_max"]) == (0.5, 3.0)
    # With a baseline, the mean of the task.
    _, found, _ = finished([1.0, 4.0, 0.5], advantage="reinforce_plus_plus_baseline")
    check(found, [[-1.5] * 3, [1.5], [0.0] * 3])


def test_kl_in_the_reward_is_what_is_still_to_come_of_it() -> None:
    settings: dict[str, Any] = {"kl_coef": 0.1, "kl_placement": "reward", "kl_estimator": "k1"}
    samples, found, _ = finished([1.0, 3.0, 0.5], reference=True, advantage="reinforce_plus_plus", **settings)
    expected = []
    for sample, reward in zip(samples, [1.0, 3.0, 0.5], strict=True):
        assert sample.ref_logprobs is not None
        divergence = (sample.old_logprobs - sample.ref_logprobs)[sample.mask].astype(float).tolist()
        expected.append([reward - 0.1 * sum(divergence[t:]) for t in range(len(divergence))])
    check(found, expected)


@pytest.mark.parametrize(("gamma", "decay"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0)])
def test_gae_is_the_sum_of_what_surprised_the_critic(gamma: float, decay: float) -> None:
    settings: dict[str, Any] = {"advantage": "gae", "gae_gamma": gamma, "gae_lambda": decay}
    samples, found, told = finished([1.0, 3.0, 0.5], values=True, **settings)
    expected, every_return = [], []
    for sample, done, reward in zip(samples, found, [1.0, 3.0, 0.5], strict=True):
        assert sample.values is not None
        assert done.returns is not None
        values = [*sample.values[sample.mask].astype(float).tolist(), 0.0]
        n = len(values) - 1
        rewards = [0.0] * (n - 1) + [reward]
        surprises = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(n)]
        advantages = [sum((gamma * decay) ** (u - t) * surprises[u] for u in range(t, n)) for t in range(n)]
        expected.append(advantages)
        returns = [value + advantage for value, advantage in zip(values[:-1], advantages, strict=True)]
        assert done.returns[done.mask].tolist() == pytest.approx(returns, rel=1e-5, abs=1e-6)
        every_return += returns
        if gamma == decay == 1.0:
            assert returns == pytest.approx([reward] * n, abs=1e-9)
    check(found, expected)
    unexplained = np.var([value for of_sample in expected for value in of_sample]) / np.var(every_return)
    assert told["critic_explained_variance"] == pytest.approx(1 - unexplained)


def test_a_sample_without_a_reward_is_known_by_it() -> None:
    (found,) = Objective(TrainerSettings(advantage="gae")).advantage([scored([NAN, 1.0, 2.0])])
    assert found is not None
    assert np.isnan(found[0]).any()
    np.testing.assert_array_equal(found[1], [0.0, 1.0])
    np.testing.assert_array_equal(found[2], [0.0, 0.0, 2.0])
