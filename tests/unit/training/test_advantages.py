import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trinity_bus.training.advantages import group_advantages

rewards_of_a_group = arrays(
    np.float32, st.integers(1, 32), elements=st.floats(-100, 100, width=32) | st.just(float("nan"))
)


def test_by_hand() -> None:
    rewards = np.array([0.0, 1.0, 1.0, 2.0], np.float32)
    deviation = np.sqrt(0.5)
    expected = (rewards - 1.0) / (deviation + 1e-4)
    divided, plain = group_advantages(rewards), group_advantages(rewards, normalize_std=False)
    assert divided is not None
    assert plain is not None
    np.testing.assert_allclose(divided, expected.astype(np.float32), rtol=1e-6)
    np.testing.assert_allclose(plain, rewards - np.float32(1.0))


def test_each_run_weighs_the_same_however_many_samples_it_gave() -> None:
    # Runs 0 and 2 give one sample each, run 1 three: their rewards are 0, 1 and 2.
    rewards, runs = np.array([0.0, 1.0, 1.0, 1.0, 2.0], np.float32), np.array([0, 1, 1, 1, 2], np.int32)
    advantages = group_advantages(rewards, runs, normalize_std=False)
    np.testing.assert_array_equal(advantages, np.array([-1.0, 0.0, 0.0, 0.0, 1.0], np.float32))
    alone = group_advantages(np.array([0.0, 1.0, 2.0], np.float32))
    assert alone is not None
    np.testing.assert_array_equal(group_advantages(rewards, runs), alone[[0, 1, 1, 1, 2]])
    # The steps of a run may differ; the run counts with their mean, and one without reward is not looked at.
    mixed = np.array([0.0, np.nan, 2.0, 3.0], np.float32)
    advantages = group_advantages(mixed, np.array([0, 0, 0, 1], np.int32), normalize_std=False)
    np.testing.assert_array_equal(advantages, np.array([-2.0, np.nan, 0.0, 1.0], np.float32))


def test_a_sample_without_reward_takes_no_part() -> None:
    advantages = group_advantages(np.array([0.0, np.nan, 1.0], np.float32), normalize_std=False)
    assert advantages is not None
    np.testing.assert_array_equal(advantages, np.array([-0.5, np.nan, 0.5], np.float32))


@pytest.mark.parametrize(
    "rewards",
    [
        pytest.param([0.1] * 7, id="equal, and not a power of two"),
        pytest.param([np.nan, np.nan], id="none given"),
        pytest.param([np.nan, 1.0], id="one given"),
        pytest.param([], id="empty"),
    ],
)
def test_a_group_that_teaches_nothing(rewards: list[float]) -> None:
    assert group_advantages(np.array(rewards, np.float32)) is None


def test_an_infinite_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="finite or NaN"):
        group_advantages(np.array([0.0, np.inf], np.float32))


@given(rewards_of_a_group)
def test_centred_and_scaled(rewards: np.ndarray) -> None:
    advantages = group_advantages(rewards)
    if advantages is None:
        return
    given_ones = ~np.isnan(rewards)
    np.testing.assert_array_equal(np.isnan(advantages), ~given_ones)
    values = advantages[given_ones].astype(np.float64)
    assert abs(values.mean()) < 1e-3
    assert values.std() < 1.0 + 1e-3
    order = np.argsort(rewards[given_ones], kind="stable")
    assert (np.diff(values[order]) >= 0).all()


@given(rewards_of_a_group, st.randoms(use_true_random=False))
def test_order_does_not_matter(rewards: np.ndarray, random: object) -> None:
    permutation = list(range(len(rewards)))
    random.shuffle(permutation)  # type: ignore[attr-defined]  # a random.Random
    advantages, permuted = group_advantages(rewards), group_advantages(rewards[permutation])
    assert (advantages is None) == (permuted is None)
    if advantages is not None:
        assert permuted is not None
        np.testing.assert_allclose(permuted, advantages[permutation], rtol=1e-4, atol=1e-5)
