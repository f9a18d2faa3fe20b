"""An objective: advantages, policy loss, correction, KL penalty and entropy bonus together.

What an example says and no policy drew costs what the loss says of examples, or ``sft`` where that learns from
experiences, and neither KL penalty nor entropy bonus. For each other token, with ``w`` of the correction::

    k3    = exp(logp_ref - logp) - 1 - (logp_ref - logp)       KL to a reference, where kl_coef is above 0
    loss  = sum over tokens of weight * (w * policy loss + kl_coef * k3 - entropy_coef * H)

``weight`` is 0 on prompt and masked tokens and else the same for every token of an update, over all micro-batches and
ranks, however long its sample is: 1 / (response tokens of the batch / updates), or 1 / (trained tokens of the update);
see ``trainer.loss_normalizer``. The token-level mean is DAPO's, Yu et al., arXiv:2503.14476, eq. 12. k3: Schulman,
"Approximating KL Divergence", 2020, joschu.net/blog/kl-approx.html.
"""

from typing import Final

import torch

from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages.advantage import Advantage
from trinity_bus.training.objectives.corrections.correction import Correction, importance_weights
from trinity_bus.training.objectives.losses.loss import PolicyLoss, Tokens, bounded
from trinity_bus.training.objectives.losses.sft import SFT
from trinity_bus.training.objectives.needs import Need

METRICS: Final = (
    "loss",
    "policy_loss",
    "entropy",
    "importance_weight_mean",
    "importance_limited_fraction",
    "rollout_k3",
    "kl",
)
"""Names of what every objective reports, in order. All are weighted sums over tokens, so they add up over micro-batches
to means over the mini-batch. ``rollout_k3`` estimates KL(rollout || trained) in nats, ``kl`` that to the reference."""


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Schulman's estimator of KL(a || b) from samples of ``a``: with ``log_ratio = log b - log a``; never negative."""
    within = bounded(log_ratio)
    return torch.expm1(within) - within


class Objective:
    """What the settings ask to optimize.

    Args:
        settings: Of the trainer.

    Raises:
        ConfigError: They name a part that is not known.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self.advantage: Advantage = registry.make("advantage", Advantage, settings)
        self._loss: PolicyLoss = registry.make("loss", PolicyLoss, settings)
        self._correction: Correction = registry.make("correction", Correction, settings)
        self._kl_coef, self._entropy_coef = settings.kl_coef, settings.entropy_coef
        self.learns_from = self._loss.learns_from
        self._shown = SFT(settings)
        self.needs = self.advantage.needs | self._loss.needs | self._correction.needs
        if settings.kl_coef > 0:
            self.needs |= Need.REFERENCE_LOGPROBS
        # With one update the old policy is the one whose gradient is taken; the engine sees to that.
        if settings.old_logprobs == "recompute" and settings.mini_batches > 1:
            self.needs |= Need.OLD_LOGPROBS
        self.metrics = (*METRICS, *self._loss.metrics)
        """Names of what :meth:`loss` reports, in order."""

    def loss(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of a micro-batch and what there is to report about it.

        Returns:
            The loss, a scalar to differentiate, and the values of :attr:`metrics`, [metrics], detached.
        """
        weight = tokens.weight
        importance = importance_weights(tokens)
        corrected = self._correction(importance, tokens)
        found = self._loss(tokens)
        losses, own = found.losses, weight
        if tokens.drawn is not None:
            own = weight * tokens.drawn
            if self.learns_from == "experiences":
                losses = torch.where(tokens.drawn, losses, self._shown(tokens).losses)
        policy_loss = (losses * corrected.weights * weight).sum()
        entropy = (tokens.entropy * own).sum()
        loss = policy_loss
        if self._entropy_coef:
            loss = loss - self._entropy_coef * entropy
        kl = torch.zeros_like(loss)
        if tokens.ref_logprobs is not None:
            kl = (k3(tokens.ref_logprobs - tokens.logprobs) * own).sum()
            loss = loss + self._kl_coef * kl
        with torch.no_grad():
            metrics = torch.stack([
                loss,
                policy_loss,
                entropy,
                (importance * weight).sum(),
                (corrected.limited * weight).sum(),
                (k3(tokens.logprobs - tokens.rollout_logprobs) * weight).sum(),
                kl,
                *((found.metrics[name] * weight).sum() for name in self._loss.metrics),
            ])  # fmt: skip
        return loss, metrics
