"""REINFORCE++: rewards against those of the whole batch, and not against those of the task alone.

For a token ``t`` of sample ``i``, with the KL penalty in the reward (``trainer.kl_placement=reward``)::

    A_it = r_i - kl_coef * (sum over the trained tokens u >= t of kl_iu)
    A    = (A - mean) / (std + epsilon)                     over all trained tokens of the step

The variant with a baseline has ``r_i - mean(r)`` over the runs of the task in the place of ``r_i``, and its KL penalty,
k2, in the loss. Neither skips a group whose runs have equal rewards: others of the batch may have other rewards.

Source: Hu et al., "REINFORCE++", arXiv:2501.03262.
"""

from collections.abc import Sequence

import numpy as np

from trinity_bus.training.objectives.advantages.advantage import Float64, ScoredSample, TokenAdvantage, runs_of


class ReinforcePlusPlus(TokenAdvantage):
    def finish(self, rewards: Float64, values: Float64) -> Float64:
        del values  # there is no critic
        return np.cumsum(rewards[::-1])[::-1]


class ReinforcePlusPlusBaseline(ReinforcePlusPlus):
    def rewards(self, samples: Sequence[ScoredSample]) -> Sequence[float]:
        runs = runs_of(samples)
        baseline = runs.means.mean() if len(runs.means) else np.nan
        return [sample.reward - baseline for sample in samples]
