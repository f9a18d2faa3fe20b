"""Advantages of runs, by hand and by property."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives.advantages.advantage import RunAdvantage, ScoredSample
from trinity_bus.training.objectives.advantages.grpo import GRPO
from trinity_bus.training.objectives.advantages.rloo import RLOO

TOKENS = 3
NAN = float("nan")
rewards_of_a_group = st.lists(st.floats(-100, 100, width=32) | st.just(NAN), min_size=1, max_size=32)
methods = pytest.mark.parametrize("method", [GRPO(TrainerSettings()), RLOO(TrainerSettings())], ids=["grpo", "rloo"])


def sample(reward: float, run: int) -> ScoredSample:
    return ScoredSample(run=run, reward=reward, mask=np.ones(TOKENS, np.bool_))


def advantages(method: RunAdvantage, rewards: Sequence[float], runs: Sequence[int] | None = None) -> list[float] | None:
    """One number for each sample: all of its tokens have the same."""
    (found,) = method([[sample(reward, run) for reward, run in zip(rewards, runs or range(len(rewards)), strict=True)]])
    if found is None:
        return None
    for of_sample in found:
        np.testing.assert_array_equal(of_sample, np.full(TOKENS, of_sample[0], np.float32))
    return [float(of_sample[0]) for of_sample in found]


def test_grpo_by_hand() -> None:
    rewards = [0.0, 1.0, 1.0, 2.0]
    expected = [(reward - 1.0) / (np.sqrt(0.5) + 1e-4) for reward in rewards]
    assert advantages(GRPO(TrainerSettings()), rewards) == pytest.approx(expected, rel=1e-6)
    assert advantages(GRPO(TrainerSettings(normalize_std=False)), rewards) == [-1.0, 0.0, 0.0, 1.0]


def test_rloo_by_hand() -> None:
    assert advantages(RLOO(TrainerSettings()), [0.0, 1.0, 5.0]) == [-3.0, -1.5, 4.5]


def test_a_sample_without_reward_takes_no_part() -> None:
    found = advantages(GRPO(TrainerSettings(normalize_std=False)), [0.0, NAN, 1.0])
    np.testing.assert_array_equal(found, [-0.5, NAN, 0.5])


def test_each_run_weighs_the_same_however_many_samples_it_gave() -> None:
    # Runs 0 and 2 give one sample each, run 1 three: their rewards are 0, 1 and 2.
    rewards, runs = [0.0, 1.0, 1.0, 1.0, 2.0], [0, 1, 1, 1, 2]
    assert advantages(GRPO(TrainerSettings(normalize_std=False)), rewards, runs) == [-1.0, 0.0, 0.0, 0.0, 1.0]
    assert advantages(RLOO(TrainerSettings()), rewards, runs) == [-1.5, 0.0, 0.0, 0.0, 1.5]
    alone = advantages(GRPO(TrainerSettings()), [0.0, 1.0, 2.0])
    assert alone is not None
    assert advantages(GRPO(TrainerSettings()), rewards, runs) == [alone[run] for run in runs]
    # The steps of a run may differ; the run counts with their mean, and one without reward is not looked at.
    mixed = advantages(GRPO(TrainerSettings(normalize_std=False)), [0.0, NAN, 2.0, 3.0], [0, 0, 0, 1])
    np.testing.assert_array_equal(np.array(mixed), np.array([-2.0, NAN, 0.0, 1.0]))


@methods
@pytest.mark.parametrize(
    "rewards",
    [
        pytest.param([0.1] * 7, id="equal, and not a power of two"),
        pytest.param([NAN, NAN], id="none given"),
        pytest.param([NAN, 1.0], id="one given"),
        pytest.param([], id="empty"),
    ],
)
def test_a_group_that_teaches_nothing(method: RunAdvantage, rewards: list[float]) -> None:
    assert advantages(method, rewards) is None


@methods
@given(rewards=rewards_of_a_group)
def test_centred_and_in_the_order_of_rewards(method: RunAdvantage, rewards: list[float]) -> None:
    found = advantages(method, rewards)
    if found is None:
        return
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rewards))
    values = np.array(found)[~np.isnan(rewards)]
    assert abs(values.mean()) < 1e-3
    order = np.argsort(np.array(rewards)[~np.isnan(rewards)], kind="stable")
    assert (np.diff(values[order]) >= -1e-5).all()


@methods
@given(rewards=rewards_of_a_group, seed=st.integers())
def test_order_does_not_matter(method: RunAdvantage, rewards: list[float], seed: int) -> None:
    permutation = list(range(len(rewards)))
    random.Random(seed).shuffle(permutation)  # noqa: S311 - a test
    found, permuted = advantages(method, rewards), advantages(method, [rewards[i] for i in permutation])
    assert (found is None) == (permuted is None)
    if found is not None and permuted is not None:
        np.testing.assert_allclose(permuted, [found[i] for i in permutation], rtol=1e-4, atol=1e-5)
