"""RLOO: the reward of a run less the mean of the other runs' (leave one out).

``A_i = r_i - mean(r_j, j != i)`` over the runs of one task (Ahmadian et al., "Back to Basics", arXiv:2402.14740;
Kool et al., 2019).
"""

from trinity_bus.training.objectives.advantages.advantage import Float64, RunAdvantage, Runs


class RLOO(RunAdvantage):
    def compare(self, runs: Runs, batch: Float64) -> Float64:
        del batch  # a task is compared with itself
        others = (runs.means.sum() - runs.means) / (len(runs.means) - 1)
        advantages: Float64 = runs.rewards - others[runs.owners]
        return advantages
