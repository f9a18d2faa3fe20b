"""GSPO, token variant: PPO's clipped surrogate with the ratio of whole sequences in place of tokens'.

With ``s = exp(mean over the sequence's trained tokens of (logp - logp_old))``::

    r         = stop(s) * exp(logp - stop(logp))
    surrogate = max(-A r, -A clip(r, 1 - low, 1 + high))

Source: Zheng et al., "Group Sequence Policy Optimization", arXiv:2507.18071, eq. 7 and, for advantages that differ from
token to token, eq. 14. Sequences' ratios are far nearer to 1 than tokens': the paper clips at 3e-4 and 4e-4.
"""

from trinity_bus.training.objectives.losses.loss import PolicyLoss, TokenLosses, Tokens, bounded
from trinity_bus.training.objectives.losses.ppo import clipped_surrogate


class GSPO(PolicyLoss):
    """The clipped surrogate, sequence by sequence."""

    metrics = ("clip_fraction", "ratio_mean")

    def __call__(self, tokens: Tokens) -> TokenLosses:
        """See :meth:`PolicyLoss.__call__`."""
        of_sequence = tokens.sequence_mean(tokens.logprobs.detach() - tokens.old_logprobs)
        ratio = bounded(of_sequence + tokens.logprobs - tokens.logprobs.detach()).exp()
        surrogate, clipped = clipped_surrogate(ratio, tokens.advantages, self.settings)
        return TokenLosses(losses=surrogate, metrics={"clip_fraction": clipped.float(), "ratio_mean": ratio.detach()})
