"""GRPO: rewards of a group less their mean, over a standard deviation.

``A_i = (r_i - mean(r)) / (std + epsilon)`` of the samples of one task, the mean over its runs, with the population's
standard deviation, of what ``trainer.advantage_std`` says:

=========  =============================================================================================================
``group``  of the task's runs (Shao et al., arXiv:2402.03300, section 4.1.2)
``batch``  of the runs of all tasks of the batch (Liu et al., "Part I: Tricks or Traps?", arXiv:2508.08221)
``none``   no division (Dr. GRPO, Liu et al., "Understanding R1-Zero-Like Training", arXiv:2503.20783; with
           ``trainer.loss_normalizer=constant``)
=========  =============================================================================================================
"""

from trinity_bus.training.objectives.advantages.advantage import Float64, RunAdvantage, Runs, deviation


class GRPO(RunAdvantage):
    def compare(self, runs: Runs, batch: Float64) -> Float64:
        scale = deviation(self.settings.advantage_std, runs.means, batch)
        advantages: Float64 = (runs.rewards - runs.means.mean()) / scale
        return advantages
