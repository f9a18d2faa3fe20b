"""Masked importance sampling: ``w = pi_old / mu`` where that is at most the cap, else what it weighs is left out.

Source: Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch", 2025,
which does so sequence by sequence: ``trainer.correction_level``.
"""

import torch

from trinity_bus.training.objectives.corrections.correction import Corrected, Correction
from trinity_bus.training.objectives.losses.loss import Tokens


class Masked(Correction):
    """Leaves out weights above ``trainer.tis_cap``."""

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens  # their importance is enough
        limited = importance > self.settings.tis_cap
        return Corrected(importance.masked_fill(limited, 0.0), limited)
