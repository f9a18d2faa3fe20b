"""What each token costs, given its advantage: see ``loss``. Most are of the ratio ``r = exp(logp - logp_old)``."""

import torch
from torch.nn.functional import logsigmoid

from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.loss import PolicyLoss, TokenLosses, Tokens, bounded


class PPO(PolicyLoss):
    """The clipped surrogate, with clip-higher and dual clipping.

    ::

        surrogate = max(-A r, -A clip(r, 1 - low, 1 + high))
        surrogate = min(surrogate, -A dual)                     where A < 0, optional

    Sources: Schulman et al., "Proximal Policy Optimization Algorithms", arXiv:1707.06347, eq. 7; high above low is
    DAPO's clip-higher, Yu et al., arXiv:2503.14476, eq. 8; dual clipping, Ye et al., arXiv:1912.09729.
    """

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


class GSPO(PPO):
    """The token variant: PPO's surrogate with the ratio of whole sequences in place of tokens'.

    With ``s = exp(mean over the sequence's trained tokens of (logp - logp_old))`` that is
    ``stop(s) * exp(logp - stop(logp))``. Source: Zheng et al., "Group Sequence Policy Optimization", arXiv:2507.18071,
    eq. 7 and, for advantages that differ from token to token, eq. 14. Sequences' ratios are far nearer to 1 than
    tokens': the paper clips at 3e-4 and 4e-4.
    """

    def ratio(self, tokens: Tokens) -> torch.Tensor:
        """Return the ratio of each token's sequence, [tokens]; the token's own gradient."""
        now = tokens.logprobs.detach()
        return bounded(tokens.sequence_mean(now - tokens.old_logprobs) + tokens.logprobs - now).exp()


class CISPO(PolicyLoss):
    """``-stop(min(r, 1 + high)) A logp``: REINFORCE whose weight is clipped, so that no token loses its gradient.

    Source: MiniMax, "MiniMax-M1", arXiv:2506.13585, eq. 4 and 5, without the lower bound, as in its experiments.
    ``high`` is far above PPO's: Khatri et al., arXiv:2510.13786, found weights of up to 4 to 8 to do equally well.
    """

    metrics = ("clip_fraction", "ratio_mean")

    def __call__(self, tokens: Tokens) -> TokenLosses:
        ratio = bounded(tokens.logprobs.detach() - tokens.old_logprobs).exp()
        highest = 1 + self.settings.clip_high
        losses: torch.Tensor = -ratio.clamp(max=highest) * tokens.advantages * tokens.logprobs
        return TokenLosses(losses=losses, metrics={"clip_fraction": (ratio > highest).float(), "ratio_mean": ratio})


class TOPR(PolicyLoss):
    """REINFORCE off policy, in which only what went badly is weighed by how likely it still is.

    With ``s = exp(sum over the sequence's trained tokens of (logp - logp_rollout))``::

        loss = -A logp                       where A >= 0
        loss = -stop(min(s, 1)) A logp       where A < 0

    Source: Le Roux et al., "Tapered Off-Policy REINFORCE", arXiv:2503.14286. The ratio is to the policy that drew the
    sequence: it is a correction of its own, so ``trainer.correction`` must be ``none`` beside it, or the old
    log-probabilities the rollout's.
    """

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


class OPMDLoss(PolicyLoss):
    """``-A logp / (1 + tau)``: policy mirror descent, which comes down to REINFORCE with a shorter step.

    ``tau`` (``trainer.opmd_tau``) is the strength of the pull to the present policy, in units of reward. Sources: those
    of the advantage of the same name, with which it is to be used.
    """

    def __call__(self, tokens: Tokens) -> TokenLosses:
        return TokenLosses(losses=-tokens.advantages * tokens.logprobs / (1 + self.settings.opmd_tau))


class SFT(PolicyLoss):
    """``-logp`` of each token of an answer.

    The loss of an update is the mean over the tokens of its demonstrations, those of each weighing what it says (Ouyang
    et al., "Training language models to follow instructions with human feedback", arXiv:2203.02155, section 3.5).
    """

    learns_from = "demonstrations"

    def __call__(self, tokens: Tokens) -> TokenLosses:
        return TokenLosses(losses=-tokens.logprobs)


class DPO(PolicyLoss):
    """Direct preference optimization: the chosen answer is to gain on the rejected one, beside a reference.

    For each pair, sums being over the tokens of an answer::

        margin = beta (sum(logp - logp_ref) of the chosen - sum(logp - logp_ref) of the rejected)
        loss   = -log sigmoid(margin)

    Each token of a pair costs what the pair does; together they weigh what the pair says. Source: Rafailov et al.,
    "Direct Preference Optimization", arXiv:2305.18290, eq. 7. The reference is the model that training began with.
    """

    needs = Need.REFERENCE_LOGPROBS | Need.PAIRS
    learns_from = "preferences"
    metrics = ("dpo_accuracy", "dpo_margin")

    def __call__(self, tokens: Tokens) -> TokenLosses:
        if tokens.pairs is None or tokens.ref_logprobs is None:
            raise TrainingError("dpo was given samples that are no pairs")
        known, pair = torch.unique(tokens.pairs, return_inverse=True)
        of_token = pair[tokens.owners]
        gained = torch.where(tokens.weight != 0, tokens.advantages * (tokens.logprobs - tokens.ref_logprobs), 0.0)
        margins = self.settings.dpo_beta * gained.new_zeros(len(known)).index_add(0, of_token, gained)
        shown = margins.detach()
        return TokenLosses(
            losses=-logsigmoid(margins)[of_token],
            metrics={"dpo_accuracy": (shown > 0).float()[of_token], "dpo_margin": shown[of_token]},
        )
