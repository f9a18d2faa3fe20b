"""The contract of advantages, and what those share that compare the runs of one task. Pure numpy."""

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
