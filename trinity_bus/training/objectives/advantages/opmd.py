"""OPMD: rewards of a group less their mean, or less their *soft* mean.

``A_i = r_i - b`` over the runs ``j`` of one task, where ``trainer.opmd_baseline`` says what ``b`` is::

    mean          b = mean(r_j)
    logavgexp     b = tau log mean(exp(r_j / tau))

The second is what policy mirror descent of strength ``tau`` (``trainer.opmd_tau``) has in the place of a baseline: the
logarithm of its partition function, estimated from the group. It is above the mean, so advantages are not centred; the
first is its limit for a large ``tau``.

Sources: Kimi Team, "Kimi k1.5", arXiv:2501.12599, section 2.3.2; Yao et al., "Group-Relative REINFORCE Is Secretly an
Off-Policy Algorithm", arXiv:2509.24203. To be used with the loss of the same name.
"""

import numpy as np

from trinity_bus.training.objectives.advantages.advantage import Float64, RunAdvantage, Runs


class OPMDAdvantage(RunAdvantage):
    def compare(self, runs: Runs, batch: Float64) -> Float64:
        del batch  # a task is compared with itself
        baseline = runs.means.mean()
        if self.settings.opmd_baseline == "logavgexp":
            tau, highest = self.settings.opmd_tau, runs.means.max()
            # Less the highest, so that nothing overflows.
            baseline = highest + tau * np.log(np.exp((runs.means - highest) / tau).mean())
        advantages: Float64 = runs.rewards - baseline
        return advantages
