"""IcePop: ``w = pi_old / mu`` where that lies in ``[floor, cap]``, else the token is left out.

Source: Ling Team, "Every Step Evolves", arXiv:2510.18855, where the bounds are 0.5 and 5: tokens on which rollout
engine and trainer disagree beyond that, either way, carry noise and no signal.
"""

import torch

from trinity_bus.training.objectives.corrections.correction import Corrected, Correction
from trinity_bus.training.objectives.losses.loss import Tokens


class IcePop(Correction):
    """Leaves out weights above ``trainer.tis_cap`` or below ``trainer.tis_floor``."""

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens  # their importance is enough
        limited = (importance > self.settings.tis_cap) | (importance < self.settings.tis_floor)
        return Corrected(importance.masked_fill(limited, 0.0), limited)
