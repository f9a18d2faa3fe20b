"""PPO's clipped surrogate, with clip-higher and dual clipping.

With ``r = exp(logp - logp_old)`` and advantage ``A``::

    surrogate = max(-A r, -A clip(r, 1 - low, 1 + high))
    surrogate = min(surrogate, -A dual)                     where A < 0, optional

Sources: Schulman et al., "Proximal Policy Optimization Algorithms", arXiv:1707.06347, eq. 7; high above low is DAPO's
clip-higher, Yu et al., arXiv:2503.14476, eq. 8; dual clipping, Ye et al., "Mastering Complex Control in MOBA Games with
Deep Reinforcement Learning", arXiv:1912.09729, eq. 5.
"""

import torch

from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives.losses.loss import PolicyLoss, TokenLosses, Tokens, bounded


def clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, settings: TrainerSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the surrogate of each token, and whether clipping stopped its gradient; all [tokens]."""
    plain = -advantages * ratio
    surrogate = torch.maximum(plain, -advantages * ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high))
    clipped = surrogate > plain
    if settings.dual_clip is not None:
        bound = -advantages * settings.dual_clip
        surrogate = torch.where(advantages < 0, torch.minimum(surrogate, bound), surrogate)
    return surrogate, clipped


class PPO(PolicyLoss):
    """The clipped surrogate, token by token."""

    metrics = ("clip_fraction", "ratio_mean")

    def __call__(self, tokens: Tokens) -> TokenLosses:
        """See :meth:`PolicyLoss.__call__`."""
        ratio = bounded(tokens.logprobs - tokens.old_logprobs).exp()
        surrogate, clipped = clipped_surrogate(ratio, tokens.advantages, self.settings)
        return TokenLosses(losses=surrogate, metrics={"clip_fraction": clipped.float(), "ratio_mean": ratio.detach()})
