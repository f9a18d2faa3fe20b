"""PPO's clipped surrogate, with clip-higher and dual clipping.

With ``r = exp(logp - logp_old)`` and advantage ``A``::

    surrogate = max(-A r, -A clip(r, 1 - low, 1 + high))
    surrogate = min(surrogate, -A dual)                     where A < 0, optional

Sources: Schulman et al., "Proximal Policy Optimization Algorithms", arXiv:1707.06347, eq. 7; high above low is DAPO's
clip-higher, Yu et al., arXiv:2503.14476, eq. 8; dual clipping, Ye et al., "Mastering Complex Control in MOBA Games with
Deep Reinforcement Learning", arXiv:1912.09729.
"""

import torch

from trinity_bus.training.objectives.losses.loss import PolicyLoss, TokenLosses, Tokens, bounded


class PPO(PolicyLoss):
    metrics = ("clip_fraction", "ratio_mean")

    def ratio(self, tokens: Tokens) -> torch.Tensor:
        """Return probability now over probability under the old policy, [tokens]; has a gradient."""
        return bounded(tokens.logprobs - tokens.old_logprobs).exp()

    def __call__(self, tokens: Tokens) -> TokenLosses:
        settings, advantages = self.settings, tokens.advantages
        ratio = self.ratio(tokens)
        plain = -advantages * ratio
        surrogate = torch.maximum(plain, -advantages * ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high))
        clipped = surrogate > plain
        if settings.dual_clip is not None:
            bound = -advantages * settings.dual_clip
            surrogate = torch.where(advantages < 0, torch.minimum(surrogate, bound), surrogate)
        return TokenLosses(losses=surrogate, metrics={"clip_fraction": clipped.float(), "ratio_mean": ratio.detach()})
