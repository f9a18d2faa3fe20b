"""RLOO: the reward of a run less the mean of the other runs' (leave one out).

``A_i = r_i - mean(r_j, j != i)`` over the runs of one task (Ahmadian et al., "Back to Basics", arXiv:2402.14740,
section 3.3; Kool et al., 2019).
"""

from trinity_bus.training.objectives.advantages.advantage import Float64, Int64, RunAdvantage


class RLOO(RunAdvantage):
    """Advantages over a baseline that leaves the run itself out."""

    def compare(self, rewards: Float64, owners: Int64, runs: Float64) -> Float64:
        """See :meth:`RunAdvantage.compare`."""
        others = (runs.sum() - runs) / (len(runs) - 1)
        advantages: Float64 = rewards - others[owners]
        return advantages
