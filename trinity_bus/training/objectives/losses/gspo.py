"""GSPO, token variant: PPO's clipped surrogate with the ratio of whole sequences in place of tokens'.

With ``s = exp(mean over the sequence's trained tokens of (logp - logp_old))``::

    r         = stop(s) * exp(logp - stop(logp))
    surrogate = max(-A r, -A clip(r, 1 - low, 1 + high))

Source: Zheng et al., "Group Sequence Policy Optimization", arXiv:2507.18071, eq. 7 and, for advantages that differ from
token to token, eq. 14. Sequences' ratios are far nearer to 1 than tokens': the paper clips at 3e-4 and 4e-4.
"""

import torch

from trinity_bus.training.objectives.losses.loss import Tokens, bounded
from trinity_bus.training.objectives.losses.ppo import PPO


class GSPO(PPO):
    def ratio(self, tokens: Tokens) -> torch.Tensor:
        """Return the ratio of each token's sequence, [tokens]; the token's own gradient."""
        now = tokens.logprobs.detach()
        return bounded(tokens.sequence_mean(now - tokens.old_logprobs) + tokens.logprobs - now).exp()
