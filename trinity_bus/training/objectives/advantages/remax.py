"""ReMax: the reward of a sample less that of the greedy answer to the same task.

``A_i = r_i - r(greedy)`` (Li et al., "ReMax", arXiv:2310.10505). The greedy answer is a run of the group that was
drawn at temperature 0. It is compared with and not trained on. A group without one teaches nothing, nor does one all of
whose rewards are the greedy one's; several greedy runs count with their mean.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives.advantages.advantage import (
    EQUAL,
    Advantage,
    GroupAdvantages,
    ScoredSample,
    runs_of,
)


class ReMax(Advantage):
    wants_greedy: ClassVar[bool] = True

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        """TrainingError where no group has a greedy run, so that nothing could ever be learned."""
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
