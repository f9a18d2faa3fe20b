"""Corrections: weights that make up for what rollout engine and trainer, or versions, differ by.

A token was drawn by the behaviour policy ``mu``; the loss stays close to the old policy. Its importance weight is
``pi_old / mu``, a constant. With ``trainer.old_logprobs=rollout`` the two are one, and every weight is 1. Weights of
tokens have little variance and a bias, as what came before them is from ``mu`` too; those of sequences no bias, and a
variance that grows with length (Liu et al., "When Speed Kills Stability", 2025). See docs/objectives.md.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.losses import Tokens, bounded


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
        """Correct the :func:`importance_weights` of a micro-batch, [tokens]."""


def importance_weights(tokens: Tokens, level: str) -> torch.Tensor:
    log_ratio = (tokens.old_logprobs - tokens.rollout_logprobs).detach()
    if level == "sequence":
        log_ratio = tokens.sequence_sum(log_ratio)
    elif level == "geometric":
        log_ratio = tokens.sequence_mean(log_ratio)
    return bounded(log_ratio).exp()


class Uncorrected(Correction):
    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens  # their importance is enough, here and below
        return Corrected(torch.ones_like(importance), torch.zeros_like(importance, dtype=torch.bool))


class Truncated(Correction):
    """Ionides, J. Comp. Graph. Stat. 17(2), 2008; Yao et al., "Your Efficient RL Framework ...", 2025."""

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens
        cap = self.settings.tis_cap
        return Corrected(importance.clamp(max=cap), importance > cap)


class Masked(Correction):
    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens
        limited = importance > self.settings.tis_cap
        return Corrected(importance.masked_fill(limited, 0.0), limited)


class IcePop(Correction):
    """Ling Team, arXiv:2510.18855."""

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens
        limited = (importance > self.settings.tis_cap) | (importance < self.settings.tis_floor)
        return Corrected(importance.masked_fill(limited, 0.0), limited)


class Unbounded(Correction):
    """With ``ppo`` decoupled PPO: Hilton et al., arXiv:2110.00641; Fu et al., arXiv:2505.24298."""

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens
        return Corrected(importance, torch.zeros_like(importance, dtype=torch.bool))
