"""Rewards to advantages: how much better a sample did than could be expected, for each of its tokens. Pure numpy.

First the contract, and what those share that compare the runs of one task; docs/objectives.md has the formulas.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from schemas.experience import Bool, Float32, Int32
from trinity_bus.config import TrainerSettings
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import Need

type Float64 = NDArray[np.float64]
type Int64 = NDArray[np.int64]

# A standard deviation below this is rounding, not a difference
EQUAL: Final = 1e-6
_EPSILON: Final = 1e-4


class ScoredSample(Struct, frozen=True, kw_only=True, eq=False):
    # Samples of one run share it: turns or branches of one episode
    run: int
    # NaN where there is none; never infinite
    reward: float
    # [response] True on tokens that the policy drew
    mask: Bool
    # [response] under the policy that drew it; whatever where that is not so
    logprobs: Float32
    # [response] under a teacher, NaN where it was not asked
    teacher_logprobs: Float32 | None = None
    # [turns] the first response token of each, ascending
    turn_starts: Int32 | None = None
    # [turns] NaN where there is none
    turn_rewards: Float32 | None = None
    # Drawn at temperature 0: for comparison, not to be trained on
    is_greedy: bool = False


# For each sample of a group its advantages, [response]; None where the group teaches nothing.
type GroupAdvantages = list[Float32] | None


class Advantage(ABC):
    needs: ClassVar[Need] = Need.NOTHING
    # Whether it compares with samples that were drawn at temperature 0; else it is given none
    wants_greedy: ClassVar[bool] = False

    def __init__(self, settings: TrainerSettings) -> None:
        self.settings = settings

    @abstractmethod
    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        """NaN on all tokens of a sample that is not to be trained on; TrainingError where nothing could be learned."""


def deviation(setting: str, group: Float64, batch: Float64) -> float:
    """Return what advantages are divided by, of a task's rewards or of all tasks': ``trainer.advantage_std``."""
    among = {"group": group, "batch": batch}.get(setting)
    return 1.0 if among is None else float(among.std()) + _EPSILON


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of one task, and the samples that they gave, without those that have no reward."""

    # Index of each in its group
    samples: list[int]
    rewards: Float64
    # [samples] index of the run of each
    owners: Int64
    # [runs] the mean reward of each: one that gave many samples weighs no more than the others
    means: Float64

    @property
    def are_equal(self) -> bool:
        return len(self.means) == 0 or bool(self.means.std() < EQUAL)


def runs_of(samples: Sequence[ScoredSample]) -> Runs:
    given = [index for index, sample in enumerate(samples) if not math.isnan(sample.reward)]
    # In float64: a mean of equal float32 values need not be equal to them.
    rewards = np.array([samples[index].reward for index in given], np.float64)
    _, owners, counts = np.unique([samples[i].run for i in given], return_inverse=True, return_counts=True)
    return Runs(
        samples=given, rewards=rewards, owners=owners, means=np.bincount(owners, weights=rewards) / counts
    )  # fmt: skip


def spread(runs: Runs, values: Float64, samples: Sequence[ScoredSample]) -> list[Float32]:
    """Give all tokens of a sample its value, [samples] of those that have a reward; NaN where there is none."""
    advantages = dict(zip(runs.samples, values.tolist(), strict=True))
    return [
        np.full(len(sample.mask), advantages.get(index, np.nan), np.float32) for index, sample in enumerate(samples)
    ]


class RunAdvantage(Advantage):
    """One advantage for each sample: its reward against those of the task's runs. All tokens of the sample get it.

    Samples without a reward take no part. A group whose runs have equal rewards teaches nothing and is skipped, as in
    DAPO's dynamic sampling (Yu et al., arXiv:2503.14476, section 3.2).
    """

    @abstractmethod
    def compare(self, runs: Runs, batch: Float64) -> Float64:
        """Compute the advantage of each sample that has a reward; ``batch`` are the mean rewards of all tasks' runs."""

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        found = [runs_of(samples) for samples in groups]
        batch = np.concatenate([np.empty(0), *(runs.means for runs in found)])
        return [
            None if runs.are_equal else spread(runs, self.compare(runs, batch), samples)
            for runs, samples in zip(found, groups, strict=True)
        ]


class TokenAdvantage(Advantage):
    """Advantages that wait for what a reference or a critic says of each token.

    ::

        groups --__call__--> rewards of tokens --passes--> less the KL penalty, where that is in the reward
                                               --finish--> advantages --> normalized over all tokens of the step
    """

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        found: list[GroupAdvantages] = []
        for samples in groups:
            rewards = [np.zeros(len(sample.mask), np.float32) for sample in samples]
            for given, sample, reward in zip(rewards, samples, self.rewards(samples), strict=True):
                given[np.flatnonzero(sample.mask)[-1:]] = reward
            found.append(rewards)
        return found

    def rewards(self, samples: Sequence[ScoredSample]) -> Sequence[float]:
        """NaN where a sample has none."""
        return [sample.reward for sample in samples]

    @abstractmethod
    def finish(self, rewards: Float64, values: Float64) -> Float64:
        """Compute the advantages of a sample, all [trained tokens]; ``values`` are zeros where there is no critic."""


class GRPO(RunAdvantage):
    """Shao et al., arXiv:2402.03300, section 4.1.2, with the population's deviation."""

    def compare(self, runs: Runs, batch: Float64) -> Float64:
        scale = deviation(self.settings.advantage_std, runs.means, batch)
        advantages: Float64 = (runs.rewards - runs.means.mean()) / scale
        return advantages


class RLOO(RunAdvantage):
    """Leave one out: Ahmadian et al., arXiv:2402.14740."""

    def compare(self, runs: Runs, batch: Float64) -> Float64:
        del batch  # a task is compared with itself
        others = (runs.means.sum() - runs.means) / (len(runs.means) - 1)
        advantages: Float64 = runs.rewards - others[runs.owners]
        return advantages


class OPMDAdvantage(RunAdvantage):
    """Kimi k1.5, arXiv:2501.12599, section 2.3.2; Yao et al., arXiv:2509.24203.

    ``logavgexp`` is the logarithm of the partition function of mirror descent of strength ``tau``, estimated from the
    group. It is above the mean, its limit for a large ``tau``, so advantages are not centred.
    """

    def compare(self, runs: Runs, batch: Float64) -> Float64:
        del batch  # a task is compared with itself
        baseline = runs.means.mean()
        if self.settings.opmd_baseline == "logavgexp":
            tau, highest = self.settings.opmd_tau, runs.means.max()
            # Less the highest, so that nothing overflows.
            baseline = highest + tau * np.log(np.exp((runs.means - highest) / tau).mean())
        advantages: Float64 = runs.rewards - baseline
        return advantages


class ReMax(Advantage):
    """Li et al., arXiv:2310.10505. The greedy answer, or the mean of several, is compared with and not trained on.

    A group without one teaches nothing, nor does one all of whose rewards are the greedy one's.
    """

    wants_greedy: ClassVar[bool] = True

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        if groups and not any(sample.is_greedy for samples in groups for sample in samples):
            raise TrainingError(
                "trainer.advantage='remax' compares with a greedy run of each task, and no task of this batch has one: "
                "send tasks with data={'greedy_baseline': true}, or draw one at temperature 0 in your workflow"
            )
        return [self._of_group(samples) for samples in groups]

    @staticmethod
    def _of_group(samples: Sequence[ScoredSample]) -> GroupAdvantages:
        greedy = runs_of([sample for sample in samples if sample.is_greedy]).means
        if len(greedy) == 0:
            return None
        values = [np.nan if sample.is_greedy else sample.reward - greedy.mean() for sample in samples]
        if not any(abs(value) >= EQUAL for value in values):
            return None
        return [np.full(len(sample.mask), value, np.float32) for sample, value in zip(samples, values, strict=True)]


class StepWise(Advantage):
    """Each turn is judged by what comes of it: Shao et al., arXiv:2402.03300, section 4.1.3, with turns for its steps.

    A turn without a reward of its own adds nothing. A sample that has no turns is one turn with the sample's reward; so
    is one none of whose turns has a reward.
    """

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        turns = [[_turns(sample) for sample in samples] for samples in groups]
        rewards = [_given([found for _, found in of_group]) for of_group in turns]
        batch = _given(rewards)
        return [
            None
            if len(given) == 0 or given.std() < EQUAL
            else [
                self._of_sample(len(sample.mask), *found, given, batch)
                for sample, found in zip(samples, of_group, strict=True)
            ]
            for samples, of_group, given in zip(groups, turns, rewards, strict=True)
        ]

    def _of_sample(self, tokens: int, starts: Int64, rewards: Float64, group: Float64, batch: Float64) -> Float32:
        if np.isnan(rewards).all():
            return np.full(tokens, np.nan, np.float32)
        scale = deviation(self.settings.advantage_std, group, batch)
        steps = np.nan_to_num((rewards - group.mean()) / scale, nan=0.0)
        to_come = np.cumsum(steps[::-1])[::-1]
        # What stands before the first turn belongs to it.
        turn = np.maximum(np.searchsorted(starts, np.arange(tokens), side="right") - 1, 0)
        found: Float32 = to_come[turn].astype(np.float32)
        return found


def _turns(sample: ScoredSample) -> tuple[Int64, Float64]:
    # The first token and the reward of each turn
    starts, rewards = sample.turn_starts, sample.turn_rewards
    if starts is None or rewards is None or np.isnan(rewards).all():
        return np.zeros(1, np.int64), np.array([sample.reward], np.float64)
    return starts.astype(np.int64), rewards.astype(np.float64)


def _given(rewards: Sequence[Float64]) -> Float64:
    every = np.concatenate([np.empty(0), *rewards])
    given: Float64 = every[~np.isnan(every)]
    return given


class Distillation(Advantage):
    """The sampled reverse KL with its sign turned: Gu et al., arXiv:2306.08543, section 2.2, the single-step part.

    On policy the gradient of REINFORCE with it is that of ``-KL(policy || teacher)`` of each next token, given what was
    drawn before it; nothing is propagated through the drawing (Agarwal et al., arXiv:2306.13649). A sample of which the
    teacher was not asked is not trained on.
    """

    needs: ClassVar[Need] = Need.TEACHER_LOGPROBS

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        if any(groups) and all(sample.teacher_logprobs is None for group in groups for sample in group):
            raise TrainingError(
                "trainer.advantage='distillation' needs what a teacher says of each token, and no sample of this batch "
                "has that: have the workflow set Rollout.teacher_logprobs"
            )
        found = [[self._of_sample(sample) for sample in group] for group in groups]
        return [None if all(np.isnan(values).any() for values in group) else group for group in found]

    @staticmethod
    def _of_sample(sample: ScoredSample) -> Float32:
        if sample.teacher_logprobs is None:
            return np.full(len(sample.mask), np.nan, np.float32)
        return np.where(sample.mask, sample.teacher_logprobs - sample.logprobs, np.float32(0))


class ReinforcePlusPlus(TokenAdvantage):
    """Rewards against those of the whole batch: Hu et al., arXiv:2501.03262."""

    def finish(self, rewards: Float64, values: Float64) -> Float64:
        del values  # there is no critic
        return np.cumsum(rewards[::-1])[::-1]


class ReinforcePlusPlusBaseline(ReinforcePlusPlus):
    def rewards(self, samples: Sequence[ScoredSample]) -> Sequence[float]:
        runs = runs_of(samples)
        baseline = runs.means.mean() if len(runs.means) else np.nan
        return [sample.reward - baseline for sample in samples]


class GAE(TokenAdvantage):
    """Generalized advantage estimation over the trained tokens: Schulman et al., arXiv:1506.02438, eq. 11 and 16.

    ``V`` is 0 after the last token. The critic is trained towards ``V_t + A_t``, before A is normalized.
    """

    needs: ClassVar[Need] = Need.VALUES

    def finish(self, rewards: Float64, values: Float64) -> Float64:
        gamma, decay = self.settings.gae_gamma, self.settings.gae_gamma * self.settings.gae_lambda
        deltas = rewards + gamma * np.append(values[1:], 0.0) - values
        advantages = np.empty_like(deltas)
        following = 0.0
        for token in range(len(deltas) - 1, -1, -1):
            advantages[token] = following = deltas[token] + decay * following
        return advantages
