"""Truncated importance sampling: ``w = min(pi_old / mu, cap)``.

Sources: Ionides, "Truncated Importance Sampling", J. Comp. Graph. Stat. 17(2), 2008; between rollout engine and
trainer: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025.
"""

import torch

from trinity_bus.training.objectives.corrections.correction import Corrected, Correction
from trinity_bus.training.objectives.losses.loss import Tokens


class Truncated(Correction):
    """Cuts weights at ``trainer.tis_cap``."""

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens  # their importance is enough
        cap = self.settings.tis_cap
        return Corrected(importance.clamp(max=cap), importance > cap)
