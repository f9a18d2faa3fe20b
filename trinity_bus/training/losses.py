"""The policy loss, token by token.

With ``r = exp(logp - logp_old)``, advantage ``A`` and the behaviour policy ``mu`` that drew the tokens::

    surrogate = max(-A r, -A clip(r, 1 - low, 1 + high))         PPO's clipping; high > low is "clip-higher"
    surrogate = min(surrogate, -A dual)   where A < 0            dual clipping, optional
    w         = min(exp(logp_old - logp_mu), cap)                truncated importance sampling, a constant
    k3        = exp(logp_ref - logp) - 1 - (logp_ref - logp)     KL to a reference, optional
    loss      = sum over tokens of weight * (w * surrogate + kl_coef * k3 - entropy_coef * H)

``weight`` is 0 on prompt and masked tokens and else the same for every token of an update, over all micro-batches and
ranks, however long its sample is: 1 / (response tokens of the batch / updates), or 1 / (trained tokens of the update);
see ``trainer.loss_normalizer``.

Sources:

* clipping: Schulman et al., "Proximal Policy Optimization Algorithms", arXiv:1707.06347, eq. 7;
* group-relative advantages: Shao et al., "DeepSeekMath", arXiv:2402.03300 (GRPO; see ``advantages``);
* clip-higher and the token-level mean: Yu et al., "DAPO", arXiv:2503.14476, eq. 8 and 12;
* dual clipping: Ye et al., "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning",
  arXiv:1912.09729, eq. 5;
* truncated importance sampling: Ionides, "Truncated Importance Sampling", J. Comp. Graph. Stat. 17(2), 2008; between
  rollout engine and trainer: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
  2025;
* k3: Schulman, "Approximating KL Divergence", 2020, joschu.net/blog/kl-approx.html.
"""

from dataclasses import dataclass
from typing import Final

import torch

_MAX_LOG_RATIO: Final = 20.0
"""Log ratios are cut here before ``exp``, so that one broken token cannot make an infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Coefficients of :func:`grpo_loss`; the defaults are DAPO's."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    """Above 1; bounds the loss of a token with a negative advantage at ``dual_clip * |A|``."""
    tis_cap: float | None = 2.0
    """Upper bound of the importance weights between old and behaviour policy; None: no weights."""
    kl_coef: float = 0.0
    entropy_coef: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What the loss needs of each token, all [tokens] float32. Values where ``weight`` is 0 do not matter."""

    logprobs: torch.Tensor
    """Under the weights that are trained; has a gradient."""
    entropy: torch.Tensor
    old_logprobs: torch.Tensor
    """Under the policy that the update stays close to."""
    rollout_logprobs: torch.Tensor
    """Under the policy that drew the token, as the rollout engine computed them."""
    ref_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    weight: torch.Tensor


METRICS: Final = (
    "loss",
    "policy_loss",
    "entropy",
    "clip_fraction",
    "ratio_mean",
    "tis_weight_mean",
    "tis_truncated_fraction",
    "rollout_k3",
    "kl",
)
"""Names of what :func:`grpo_loss` reports, in order. All are weighted sums over tokens, so they add up over
micro-batches to means over the mini-batch. ``rollout_k3`` estimates KL(rollout || trained) in nats, ``kl`` that to the
reference."""


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Schulman's estimator of KL(a || b) from samples of ``a``: with ``log_ratio = log b - log a``; never negative."""
    bounded = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return torch.expm1(bounded) - bounded


def grpo_loss(tokens: Tokens, config: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of a micro-batch and what there is to report about it.

    Returns:
        The loss, a scalar to differentiate, and the values of :data:`METRICS`, [metrics], detached.
    """
    advantages, weight = tokens.advantages, tokens.weight
    ratio = (tokens.logprobs - tokens.old_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    plain = -advantages * ratio
    surrogate = torch.maximum(plain, -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high))
    clipped = surrogate > plain
    if config.dual_clip is not None:
        bound = -advantages * config.dual_clip
        surrogate = torch.where(advantages < 0, torch.minimum(surrogate, bound), surrogate)

    importance = (tokens.old_logprobs - tokens.rollout_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp().detach()
    if config.tis_cap is None:
        truncated = torch.zeros_like(importance, dtype=torch.bool)
    else:
        truncated = importance > config.tis_cap
        surrogate = surrogate * importance.clamp(max=config.tis_cap)

    policy_loss = (surrogate * weight).sum()
    entropy = (tokens.entropy * weight).sum()
    loss = policy_loss
    if config.entropy_coef:
        loss = loss - config.entropy_coef * entropy
    kl = torch.zeros_like(loss)
    if tokens.ref_logprobs is not None:
        kl = (k3(tokens.ref_logprobs - tokens.logprobs) * weight).sum()
        loss = loss + config.kl_coef * kl
    with torch.no_grad():
        metrics = torch.stack([
            loss,
            policy_loss,
            entropy,
            (clipped * weight).sum(),
            (ratio * weight).sum(),
            (importance * weight).sum(),
            (truncated * weight).sum(),
            (k3(tokens.logprobs - tokens.rollout_logprobs) * weight).sum(),
            kl,
        ])  # fmt: skip
    return loss, metrics
