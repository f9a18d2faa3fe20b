"""An objective: advantages, policy loss, correction, KL penalty and entropy bonus together.

What an example says and no policy drew costs what the loss says of examples, or ``sft`` where that learns from
experiences, and neither KL penalty nor entropy bonus. For each other token, with ``w`` of the correction::

    loss = sum over tokens of weight * (w * policy loss + kl_coef * kl - entropy_coef * H)

``weight`` is 0 on prompt and masked tokens, and else what ``step_plan`` makes of ``trainer.loss_normalizer``. ``kl`` is
an estimate of KL(policy || reference), where ``kl_coef`` is above 0 and not the reward bears it, from the tokens that
the policy drew. On policy ``k1`` and ``k3`` are unbiased, ``k2`` is nearly so where the policies are near. Sources:
Schulman, "Approximating KL Divergence", 2020, joschu.net/blog/kl-approx.html; the cut is that of verl's
``low_var_kl``.
"""

from collections.abc import Callable
from typing import Final

import torch

from trinity_bus.config import TrainerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.training.objectives import Need, registry
from trinity_bus.training.objectives.advantages import Advantage, TokenAdvantage
from trinity_bus.training.objectives.correction import Correction, importance_weights
from trinity_bus.training.objectives.losses import SFT, PolicyLoss, Tokens, bounded

_HIGHEST: Final = 10.0


def k1(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the estimate from log-probability under the policy less that under the reference."""
    return log_ratio


def k2(log_ratio: torch.Tensor) -> torch.Tensor:
    return bounded(log_ratio).square() / 2


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    within = bounded(log_ratio)
    return torch.expm1(-within) + within


def low_variance(log_ratio: torch.Tensor) -> torch.Tensor:
    return k3(log_ratio).clamp(max=_HIGHEST)


# By their names in ``trainer.kl_estimator``
ESTIMATORS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "low_variance": low_variance,
}


# Names of what every objective reports, in order. All are weighted sums over tokens, so they add up over micro-batches
# to means over the mini-batch. ``rollout_k3`` estimates KL(rollout || trained) in nats, ``kl`` that to the reference.
METRICS: Final = (
    "loss",
    "policy_loss",
    "entropy",
    "importance_weight_mean",
    "importance_limited_fraction",
    "rollout_k3",
    "kl",
)


class Objective:
    """ConfigError where the settings name a part that is not known, or parts that do not go together."""

    def __init__(self, settings: TrainerSettings) -> None:
        self.advantage: Advantage = registry.make("advantage", Advantage, settings)
        self._loss: PolicyLoss = registry.make("loss", PolicyLoss, settings)
        self._correction: Correction = registry.make("correction", Correction, settings)
        if self._loss.corrects and settings.old_logprobs == "recompute" and settings.correction != "none":
            raise ConfigError(
                f"trainer.loss={settings.loss!r} makes up for other policies by itself: set trainer.correction to "
                f"'none', it is {settings.correction!r}"
            )
        self._kl_in_loss = settings.kl_placement == "loss"
        if not self._kl_in_loss and not isinstance(self.advantage, TokenAdvantage):
            raise ConfigError(
                f"trainer.advantage={settings.advantage!r} knows no rewards of tokens: "
                "set trainer.kl_placement to 'loss'"
            )
        self._level, self._kl = settings.correction_level, ESTIMATORS[settings.kl_estimator]
        self._kl_coef, self._entropy_coef = settings.kl_coef, settings.entropy_coef
        self.learns_from = self._loss.learns_from
        self._shown = SFT(settings)
        self.needs = self.advantage.needs | self._loss.needs | self._correction.needs
        if settings.kl_coef > 0:
            self.needs |= Need.REFERENCE_LOGPROBS
        # With one update the old policy is the one whose gradient is taken; the engine sees to that.
        if settings.old_logprobs == "recompute" and settings.mini_batches > 1:
            self.needs |= Need.OLD_LOGPROBS
        # Names of what :meth:`loss` reports, in order
        self.metrics = (*METRICS, *self._loss.metrics)

    def penalties(self, logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
        # What the divergence from the reference costs each token of its reward
        return torch.zeros_like(logprobs) if self._kl_in_loss else self._kl_coef * self._kl(logprobs - ref_logprobs)

    def loss(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of a micro-batch, a scalar to differentiate, and the values of :attr:`metrics`, detached."""
        weight = tokens.weight
        importance = importance_weights(tokens, self._level)
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
            kl = (self._kl(tokens.logprobs - tokens.ref_logprobs) * own).sum()
            if self._kl_in_loss:
                loss = loss + self._kl_coef * kl
        with torch.no_grad():
            metrics = torch.stack([
                loss,
                policy_loss,
                entropy,
                (importance * weight).sum(),
                (corrected.limited * weight).sum(),
                (k3(tokens.rollout_logprobs - tokens.logprobs) * weight).sum(),
                kl,
                *((found.metrics[name] * weight).sum() for name in self._loss.metrics),
            ])  # fmt: skip
        return loss, metrics
