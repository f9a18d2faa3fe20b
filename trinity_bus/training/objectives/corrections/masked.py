"""Masked importance sampling: ``w = pi_old / mu`` where that is at most the cap, else the token is left out.

Source: "IcePop" of the Ling team, "Every Step Evolves", arXiv:2510.18855, with the lower bound at
``1 / cap``: tokens on which rollout engine and trainer disagree beyond that carry noise, not signal.
"""

import torch

from trinity_bus.training.objectives.corrections.correction import Corrected, Correction
from trinity_bus.training.objectives.losses.loss import Tokens


class Masked(Correction):
    """Leaves out tokens whose weight is above ``trainer.tis_cap`` or below its inverse."""

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        """See :meth:`Correction.__call__`."""
        del tokens  # each weight is its own
        cap = self.settings.tis_cap
        limited = (importance > cap) | (importance < 1 / cap)
        return Corrected(importance.masked_fill(limited, 0.0), limited)
