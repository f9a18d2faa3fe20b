"""TOPR: REINFORCE off policy, in which only what went badly is weighed by how likely it still is.

With ``s = exp(sum over the sequence's trained tokens of (logp - logp_rollout))``::

    loss = -A logp                       where A >= 0
    loss = -stop(min(s, 1)) A logp       where A < 0

Source: Le Roux et al., "Tapered Off-Policy REINFORCE", arXiv:2503.14286. The ratio is to the policy that drew the
sequence: it is a correction of its own, so ``trainer.correction`` must be ``none`` beside it, or the old
log-probabilities the rollout's.
"""

import torch

from trinity_bus.training.objectives.losses.loss import PolicyLoss, TokenLosses, Tokens, bounded


class TOPR(PolicyLoss):
    corrects = True
    metrics = ("clip_fraction", "ratio_mean")

    def __call__(self, tokens: Tokens) -> TokenLosses:
        ratio = bounded(tokens.sequence_sum(tokens.logprobs.detach() - tokens.rollout_logprobs)).exp()
        bad = tokens.advantages < 0
        weight = torch.where(bad, ratio.clamp(max=1.0), 1.0)
        losses = -weight * tokens.advantages * tokens.logprobs
        return TokenLosses(
            losses=losses, metrics={"clip_fraction": (bad & (ratio > 1)).float(), "ratio_mean": ratio}
        )  # fmt: skip
