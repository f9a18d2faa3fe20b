"""The contract of advantages, and a base for those that compare the runs of one task. Pure numpy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from schemas.experience import Bool, Float32
from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives.needs import Need

type Float64 = NDArray[np.float64]
type Int64 = NDArray[np.int64]

EQUAL: Final = 1e-6
"""A standard deviation below this is rounding, not a difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """What advantages are computed from."""

    run: int
    """Samples of one run share it: turns or branches of one episode."""
    reward: float
    """NaN where there is none; never infinite."""
    mask: Bool
    """[response] True on tokens that the policy drew."""


type GroupAdvantages = list[Float32] | None
"""For each sample of a group its advantages, [response]; None where the group teaches nothing."""


class Advantage(ABC):
    """Computes the advantages of a batch.

    Args:
        settings: Of the trainer.
    """

    needs: ClassVar[Need] = Need.NOTHING

    def __init__(self, settings: TrainerSettings) -> None:
        self.settings = settings

    @abstractmethod
    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        """Compute the advantages.

        Args:
            groups: The samples of each task of the batch.

        Returns:
            For each group its advantages; NaN on all tokens of a sample that is not to be trained on.
        """


class RunAdvantage(Advantage):
    """One advantage for each sample: its reward against those of the task's runs. All tokens of the sample get it.

    A run counts with the mean reward of its samples: one that gave many, a turn each, weighs no more than the others.
    Samples without a reward take no part. A group whose runs have equal rewards teaches nothing and is skipped, as in
    DAPO's dynamic sampling (Yu et al., arXiv:2503.14476, section 3.2).
    """

    @abstractmethod
    def compare(self, rewards: Float64, owners: Int64, runs: Float64) -> Float64:
        """Compute the advantage of each sample.

        Args:
            rewards: [samples] of those that have one.
            owners: [samples] index of the run of each.
            runs: [runs] the mean reward of each, not all of them equal.
        """

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        """See :meth:`Advantage.__call__`."""
        return [self._of_group(samples) for samples in groups]

    def _of_group(self, samples: Sequence[ScoredSample]) -> GroupAdvantages:
        given = [index for index, sample in enumerate(samples) if not np.isnan(sample.reward)]
        # In float64: a mean of equal float32 values need not be equal to them.
        rewards = np.array([samples[index].reward for index in given], np.float64)
        _, owners, counts = np.unique([samples[i].run for i in given], return_inverse=True, return_counts=True)
        runs = np.bincount(owners, weights=rewards) / counts
        if len(runs) == 0 or runs.std() < EQUAL:
            return None
        advantages = dict(zip(given, self.compare(rewards, owners, runs).tolist(), strict=True))
        return [
            np.full(len(sample.mask), advantages.get(index, np.nan), np.float32) for index, sample in enumerate(samples)
        ]
