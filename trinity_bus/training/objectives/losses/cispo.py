"""CISPO: REINFORCE whose weight, the ratio, is clipped and not differentiated, so that no token loses its gradient.

With ``r = exp(logp - logp_old)`` and advantage ``A``::

    loss = -stop(min(r, 1 + high)) A logp

Source: MiniMax, "MiniMax-M1", arXiv:2506.13585, eq. 4 and 5, without the lower bound, as in its experiments. ``high``
is far above PPO's: Khatri et al., "The Art of Scaling Reinforcement Learning Compute for LLMs", arXiv:2510.13786, found
weights of up to 4 to 8 to do equally well.
"""

import torch

from trinity_bus.training.objectives.losses.loss import PolicyLoss, TokenLosses, Tokens, bounded


class CISPO(PolicyLoss):
    """Clips the weight of a token's gradient at ``1 + trainer.clip_high``."""

    metrics = ("clip_fraction", "ratio_mean")

    def __call__(self, tokens: Tokens) -> TokenLosses:
        ratio = bounded(tokens.logprobs.detach() - tokens.old_logprobs).exp()
        highest = 1 + self.settings.clip_high
        losses: torch.Tensor = -ratio.clamp(max=highest) * tokens.advantages * tokens.logprobs
        return TokenLosses(losses=losses, metrics={"clip_fraction": (ratio > highest).float(), "ratio_mean": ratio})
