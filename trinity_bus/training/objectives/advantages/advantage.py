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
    """One advantage for each run, from the rewards of the task's other runs; all tokens of the run get it.

    A run's reward is the last that its samples have, and each run weighs the same, however many samples it has. Runs
    without a reward take no part. A group whose rewards are all equal teaches nothing and is skipped, as in DAPO's
    dynamic sampling (Yu et al., arXiv:2503.14476, section 3.2).
    """

    @abstractmethod
    def of_runs(self, rewards: Float64) -> Float64:
        """Compute the advantage of each run.

        Args:
            rewards: [runs], not all of them equal.
        """

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        """See :meth:`Advantage.__call__`."""
        return [self._of_group(samples) for samples in groups]

    def _of_group(self, samples: Sequence[ScoredSample]) -> GroupAdvantages:
        # In float64: a mean of equal float32 values need not be equal to them.
        rewards = {sample.run: sample.reward for sample in samples if not np.isnan(sample.reward)}
        given = np.array(list(rewards.values()), np.float64)
        if len(given) == 0 or given.std() < EQUAL:
            return None
        advantages = dict(zip(rewards, self.of_runs(given).tolist(), strict=True))
        return [np.full(len(sample.mask), advantages.get(sample.run, np.nan), np.float32) for sample in samples]
