"""Advantages of runs, by hand and by property."""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from trinity_bus.config import TrainerSettings
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives.advantages import (
    GRPO,
    RLOO,
    Distillation,
    OPMDAdvantage,
    ReMax,
    RunAdvantage,
    ScoredSample,
    StepWise,
)
from trinity_bus.training.objectives.losses import Tokens
from trinity_bus.training.objectives.objective import Objective

TOKENS = 3
NAN = float("nan")
rewards_of_a_group = st.lists(st.floats(-100, 100, width=32) | st.just(NAN), min_size=1, max_size=32)
methods = pytest.mark.parametrize(
    "method",
    [GRPO(TrainerSettings()), RLOO(TrainerSettings()), OPMDAdvantage(TrainerSettings())],
    ids=["grpo", "rloo", "opmd"],
)


def sample(reward: float, run: int = 0, tokens: int = TOKENS, **fields: Any) -> ScoredSample:
    values = {"mask": np.ones(tokens, np.bool_), "logprobs": np.full(tokens, -1, np.float32), **fields}
    return ScoredSample(run=run, reward=reward, **values)


def of_groups(method: Any, groups: list[list[ScoredSample]]) -> Any:
    """A list for each group, or None where it teaches nothing."""
    return method(groups)


def advantages(method: RunAdvantage, rewards: Sequence[float], runs: Sequence[int] | None = None) -> list[float] | None:
    """One number for each sample: all of its tokens have the same."""
    (found,) = method([[sample(reward, run) for reward, run in zip(rewards, runs or range(len(rewards)), strict=True)]])
    if found is None:
        return None
    for of_sample in found:
        np.testing.assert_array_equal(of_sample, np.full(TOKENS, of_sample[0], np.float32))
    return [float(of_sample[0]) for of_sample in found]


SOFT = [0.0, 1.0, 1.0, 5.0]


def soft_baseline(tau: float) -> float:
    return tau * math.log(math.fsum(math.exp(reward / tau) for reward in SOFT) / 4)


@pytest.mark.parametrize(
    ("method", "settings", "rewards", "expected"),
    [
        (GRPO, {}, [0.0, 1.0, 1.0, 2.0], [a / (math.sqrt(0.5) + 1e-4) for a in (-1.0, 0.0, 0.0, 1.0)]),
        (GRPO, {"advantage_std": "none"}, [0.0, 1.0, 1.0, 2.0], [-1.0, 0.0, 0.0, 1.0]),
        (RLOO, {}, [0.0, 1.0, 5.0], [-3.0, -1.5, 4.5]),
        (OPMDAdvantage, {}, SOFT, [-1.75, -0.75, -0.75, 3.25]),
        *(
            (
                OPMDAdvantage,
                {"opmd_baseline": "logavgexp", "opmd_tau": tau},
                SOFT,
                [reward - soft_baseline(tau) for reward in SOFT],
            )
            for tau in (0.01, 0.5, 10.0)
        ),
    ],
)
def test_advantages_by_hand(method: Any, settings: dict[str, Any], rewards: list[float], expected: list[float]) -> None:
    found = advantages(method(TrainerSettings(**settings)), rewards)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_grpo_over_the_deviation_of_the_batch() -> None:
    groups = [[0.0, 1.0], [3.0, 3.0], [0.0, 4.0]]
    rewards = [0.0, 1.0, 3.0, 3.0, 0.0, 4.0]
    mean = sum(rewards) / 6
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / 6) ** 0.5
    of_batch = GRPO(TrainerSettings(advantage_std="batch"))
    first, second, third = of_groups(of_batch, [[sample(r, run) for run, r in enumerate(group)] for group in groups])
    assert [a[0] for a in first] == pytest.approx([-0.5 / (deviation + 1e-4), 0.5 / (deviation + 1e-4)], rel=1e-6)
    assert [a[0] for a in third] == pytest.approx([-2 / (deviation + 1e-4), 2 / (deviation + 1e-4)], rel=1e-6)
    # What has equal rewards counts in the deviation, and teaches nothing.
    assert second is None


def test_remax_compares_with_the_greedy_answer_and_does_not_train_on_it() -> None:
    def group(rewards: list[float], greedy: list[float]) -> list[ScoredSample]:
        drawn = [sample(reward, run) for run, reward in enumerate(rewards)]
        return drawn + [replace(sample(reward, 10 + i), is_greedy=True) for i, reward in enumerate(greedy)]

    groups = [group([0.0, 1.0, NAN], [0.25]), group([1.0, 1.0], [1.0]), group([0.0, 1.0], []), group([1.0], [0.0, 0.5])]
    first, none_better, without, two = of_groups(ReMax(TrainerSettings()), groups)
    np.testing.assert_array_equal([a[0] for a in first], [-0.25, 0.75, NAN, NAN])
    assert none_better is None
    assert without is None
    np.testing.assert_array_equal([a[0] for a in two], [0.75, NAN, NAN])
    with pytest.raises(TrainingError, match=r"remax.*no task of this batch has one: send tasks with data="):
        ReMax(TrainerSettings())([group([0.0, 1.0], [])])
    assert ReMax(TrainerSettings())([]) == []


def turns(rewards: list[float], starts: list[int], tokens: int, reward: float = NAN) -> ScoredSample:
    of_turns: dict[str, Any] = {
        "turn_starts": np.array(starts, np.int32),
        "turn_rewards": np.array(rewards, np.float32),
    }
    return sample(reward, tokens=tokens, **of_turns)


def test_stepwise_by_hand() -> None:
    # Turn rewards 1, none, 3 and 0; the second sample's turns begin at its second token.
    groups = [[turns([1.0, NAN, 3.0], [0, 2, 3], 5), turns([0.0], [1], 3)]]
    (found,) = of_groups(StepWise(TrainerSettings(advantage_std="none")), groups)
    mean = 4 / 3
    of_first, of_third, of_other = 1 - mean, 3 - mean, 0 - mean
    np.testing.assert_allclose(found[0], [of_first + of_third] * 2 + [of_third] * 3, rtol=1e-6)
    np.testing.assert_allclose(found[1], [of_other] * 3, rtol=1e-6)
    deviation = math.sqrt(((1 - mean) ** 2 + (3 - mean) ** 2 + mean**2) / 3) + 1e-4
    (scaled,) = of_groups(StepWise(TrainerSettings()), groups)
    np.testing.assert_allclose(scaled[0], found[0] / deviation, rtol=1e-6)


def test_stepwise_takes_a_sample_without_turn_rewards_as_one_turn() -> None:
    rewards = [0.0, 1.0, NAN, 2.0]
    samples = [sample(reward, run) for run, reward in enumerate(rewards)]
    samples[1] = turns([NAN, NAN], [0, 1], TOKENS, reward=1.0)
    (found,) = of_groups(StepWise(TrainerSettings()), [samples])
    expected = advantages(GRPO(TrainerSettings()), rewards)
    np.testing.assert_allclose([a[0] for a in found], np.array(expected), rtol=1e-6)
    assert StepWise(TrainerSettings())([[sample(1.0, 0), sample(1.0, 1)], [sample(NAN, 0)], []]) == [None] * 3


def test_each_run_weighs_the_same_however_many_samples_it_gave() -> None:
    # Runs 0 and 2 give one sample each, run 1 three: their rewards are 0, 1 and 2.
    rewards, runs = [0.0, 1.0, 1.0, 1.0, 2.0], [0, 1, 1, 1, 2]
    assert advantages(GRPO(TrainerSettings(advantage_std="none")), rewards, runs) == [-1.0, 0.0, 0.0, 0.0, 1.0]
    assert advantages(RLOO(TrainerSettings()), rewards, runs) == [-1.5, 0.0, 0.0, 0.0, 1.5]
    alone: Any = advantages(GRPO(TrainerSettings()), [0.0, 1.0, 2.0])
    assert advantages(GRPO(TrainerSettings()), rewards, runs) == [alone[run] for run in runs]
    # The steps of a run may differ; the run counts with their mean, and one without reward is not looked at.
    mixed = advantages(GRPO(TrainerSettings(advantage_std="none")), [0.0, NAN, 2.0, 3.0], [0, 0, 0, 1])
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


def test_distillation_follows_the_gradient_of_the_reverse_kl() -> None:
    """Over all answers of two tokens, each weighing its probability, against the divergence after each prefix."""
    words, draws = 5, torch.Generator().manual_seed(0)
    first = torch.randn(words, generator=draws).requires_grad_()
    second = torch.randn(words, words, generator=draws).requires_grad_()
    teacher = [torch.randn(shape, generator=draws).log_softmax(-1) for shape in ((words,), (words, words))]

    own = first.log_softmax(0), second.log_softmax(1)
    reached = own[0].detach().exp()
    divergence = (own[0].exp() * (own[0] - teacher[0])).sum()
    divergence = divergence + (reached[:, None] * own[1].exp() * (own[1] - teacher[1])).sum()
    expected = torch.autograd.grad(divergence, (first, second))

    settings = TrainerSettings(advantage="distillation", correction="none")
    own = first.log_softmax(0), second.log_softmax(1)
    answers = [(one, two) for one in range(words) for two in range(words)]
    logprobs = torch.stack([torch.stack([own[0][one], own[1][one, two]]) for one, two in answers])
    told = torch.stack([torch.stack([teacher[0][one], teacher[1][one, two]]) for one, two in answers])
    drawn = logprobs.detach()
    samples = [
        sample(NAN, run, 2, logprobs=drawn[run].numpy(), teacher_logprobs=told[run].numpy())
        for run in range(len(answers))
    ]
    (advantages,) = of_groups(Distillation(settings), [samples])
    tokens = Tokens(
        logprobs=logprobs.flatten(),
        entropy=torch.zeros(logprobs.numel()),
        old_logprobs=drawn.flatten(),
        rollout_logprobs=drawn.flatten(),
        ref_logprobs=None,
        advantages=torch.from_numpy(np.concatenate(advantages)),
        weight=drawn.sum(1).exp().repeat_interleave(2),
        bounds=torch.arange(0, logprobs.numel() + 1, 2, dtype=torch.int32),
    )
    found = torch.autograd.grad(Objective(settings).loss(tokens)[0], (first, second))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_distillation_leaves_out_what_no_teacher_has_seen() -> None:
    def scored(teacher: list[float] | None) -> ScoredSample:
        logprobs, mask = np.array([-1.0, 9.0], np.float32), np.array([True, False])
        of_teacher = None if teacher is None else np.array(teacher, np.float32)
        return sample(1.0, mask=mask, logprobs=logprobs, teacher_logprobs=of_teacher)

    told, unseen, unasked = scored([-0.25, NAN]), scored([NAN, NAN]), scored(None)
    found, nothing = of_groups(Distillation(TrainerSettings()), [[told, unseen, unasked], [unseen]])
    np.testing.assert_array_equal(found[0], np.array([0.75, 0], np.float32))
    assert np.isnan(found[1]).any()
    assert np.isnan(found[2]).all()
    assert nothing is None
    with pytest.raises(TrainingError, match="what a teacher says of each token"):
        Distillation(TrainerSettings())([[unasked], []])
    assert Distillation(TrainerSettings())([[], []]) == [None, None]
