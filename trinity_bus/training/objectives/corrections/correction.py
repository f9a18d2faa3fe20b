"""The contract of corrections: weights that make up for what rollout engine and trainer, or versions, differ by.

A token was drawn by the behaviour policy ``mu``; the loss stays close to the old policy. Its importance weight is
``pi_old / mu``, the same for every gradient: a constant. With ``trainer.old_logprobs=rollout`` the two are one, and
every weight is 1.

``trainer.correction_level`` says whose probabilities these are. All tokens of a sequence have the same, but for the
first:

=============  =======================================================================================================
``token``      the token's own: little variance, biased, as what came before it is from ``mu`` too
``sequence``   the whole sequence's, the product over its trained tokens: no bias, a variance that grows with length
``geometric``  the same to the power of one over their number, so that bounds fit sequences of any length
=============  =======================================================================================================

Source: Liu et al., "When Speed Kills Stability", 2025.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives.losses.loss import Tokens, bounded
from trinity_bus.training.objectives.needs import Need


@dataclass(frozen=True, slots=True)
class Corrected:
    # Both [tokens], without a gradient

    # What the loss of each is multiplied by
    weights: torch.Tensor
    # True where the weight is not what it would have been, because it was out of bounds
    limited: torch.Tensor


class Correction(ABC):
    needs: ClassVar[Need] = Need.NOTHING

    def __init__(self, settings: TrainerSettings) -> None:
        self.settings = settings

    @abstractmethod
    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        """Compute the weights of a micro-batch from its :func:`importance_weights`, [tokens]."""


def importance_weights(tokens: Tokens, level: str) -> torch.Tensor:
    """Return probability under the old policy over that under the behaviour policy, [tokens], without a gradient."""
    log_ratio = (tokens.old_logprobs - tokens.rollout_logprobs).detach()
    if level == "sequence":
        log_ratio = tokens.sequence_sum(log_ratio)
    elif level == "geometric":
        log_ratio = tokens.sequence_mean(log_ratio)
    return bounded(log_ratio).exp()
