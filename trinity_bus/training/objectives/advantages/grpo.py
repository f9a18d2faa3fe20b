"""GRPO: rewards of a group less their mean, over their standard deviation.

``A_i = (r_i - mean(r)) / (std(r) + epsilon)`` of the samples of one task, mean and deviation over its runs (Shao et
al., arXiv:2402.03300, section 4.1.2), with the population's standard deviation; without the division where
``trainer.normalize_std`` is off (Liu et al., "Understanding R1-Zero-Like Training", arXiv:2503.20783).
"""

from typing import Final

from trinity_bus.training.objectives.advantages.advantage import Float64, Int64, RunAdvantage

_EPSILON: Final = 1e-4


class GRPO(RunAdvantage):
    """Group-relative advantages."""

    def compare(self, rewards: Float64, owners: Int64, runs: Float64) -> Float64:
        """See :meth:`RunAdvantage.compare`."""
        del owners  # every run is compared with all of them
        scale = float(runs.std()) + _EPSILON if self.settings.normalize_std else 1.0
        advantages: Float64 = (rewards - runs.mean()) / scale
        return advantages
