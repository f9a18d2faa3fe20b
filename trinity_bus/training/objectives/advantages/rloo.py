"""RLOO: the reward of a run less the mean of the other runs' (leave one out).

``A_i = r_i - mean(r_j, j != i)`` over the runs of one task (Ahmadian et al., "Back to Basics", arXiv:2402.14740,
section 3.3; Kool et al., 2019).
"""

from trinity_bus.training.objectives.advantages.advantage import Float64, RunAdvantage


class RLOO(RunAdvantage):
    """Advantages over a baseline that leaves the run itself out."""

    def of_runs(self, rewards: Float64) -> Float64:
        """See :meth:`RunAdvantage.of_runs`."""
        others = (rewards.sum() - rewards) / (len(rewards) - 1)
        advantages: Float64 = rewards - others
        return advantages
