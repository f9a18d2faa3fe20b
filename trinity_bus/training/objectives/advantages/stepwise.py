"""Step-wise GRPO: each turn is judged by what comes of it, from the rewards of turns.

With the rewards ``r`` of all turns of all samples of a task, and a token of turn ``k`` of sample ``i``::

    A = sum over the turns j >= k of sample i of (r_ij - mean(r)) / (std(r) + epsilon)

Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, section 4.1.3, with turns for its steps; the division is that of
``trainer.advantage_std``. A turn without a reward of its own adds nothing. A sample that has no turns is one turn with
the sample's reward; so is one none of whose turns has a reward.
"""

from collections.abc import Sequence

import numpy as np

from schemas.experience import Float32
from trinity_bus.training.objectives.advantages.advantage import (
    EQUAL,
    Advantage,
    Float64,
    GroupAdvantages,
    Int64,
    ScoredSample,
    deviation,
)


class StepWise(Advantage):
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
