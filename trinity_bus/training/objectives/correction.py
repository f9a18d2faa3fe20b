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
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.loss import Tokens, bounded


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


class Uncorrected(Correction):
    """Every token weighs 1."""

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens  # their importance is enough, here and below
        return Corrected(torch.ones_like(importance), torch.zeros_like(importance, dtype=torch.bool))


class Truncated(Correction):
    """``w = min(pi_old / mu, cap)``, with ``trainer.tis_cap``: truncated importance sampling.

    Sources: Ionides, "Truncated Importance Sampling", J. Comp. Graph. Stat. 17(2), 2008; between rollout engine and
    trainer: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025.
    """

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens
        cap = self.settings.tis_cap
        return Corrected(importance.clamp(max=cap), importance > cap)


class Masked(Correction):
    """``w = pi_old / mu`` where that is at most ``trainer.tis_cap``, else what it weighs is left out.

    Source: Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch",
    2025, which does so sequence by sequence: ``trainer.correction_level``.
    """

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens
        limited = importance > self.settings.tis_cap
        return Corrected(importance.masked_fill(limited, 0.0), limited)


class IcePop(Correction):
    """``w = pi_old / mu`` from ``trainer.tis_floor`` to ``trainer.tis_cap``, else the token is left out.

    Source: Ling Team, "Every Step Evolves", arXiv:2510.18855, where the bounds are 0.5 and 5: tokens on which rollout
    engine and trainer disagree beyond that, either way, carry noise and no signal.
    """

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens
        limited = (importance > self.settings.tis_cap) | (importance < self.settings.tis_floor)
        return Corrected(importance.masked_fill(limited, 0.0), limited)


class Unbounded(Correction):
    """``w = pi_old / mu``: importance sampling as it is.

    With ``trainer.loss=ppo`` and ``trainer.old_logprobs=recompute`` this is decoupled PPO: one policy has drawn the
    tokens, and the loss stays close to another one, the *proximal* policy, which is that of the start of the step::

        loss = -(pi_old / mu) min(r A, clip(r, 1 - low, 1 + high) A)        r = pi / pi_old

    Source: Hilton et al., "Batch size-invariance for policy optimization", arXiv:2110.00641; for language models Fu et
    al., "AReaL", arXiv:2505.24298. Its variance has no bound; ``truncated`` has one.
    """

    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens
        return Corrected(importance, torch.zeros_like(importance, dtype=torch.bool))
