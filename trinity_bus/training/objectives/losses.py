"""What each token costs, given its advantage: see ``loss``, and docs/objectives.md for the formulas."""

import torch
from torch.nn.functional import logsigmoid

from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.loss import PolicyLoss, TokenLosses, Tokens, bounded


class PPO(PolicyLoss):
    """Schulman et al., arXiv:1707.06347, eq. 7; clip-higher, Yu et al., 2503.14476; dual, Ye et al., 1912.09729."""

    metrics = ("clip_fraction", "ratio_mean")

    def ratio(self, tokens: Tokens) -> torch.Tensor:
        # [tokens]; has a gradient
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
    """The token variant, ``stop(s) * exp(logp - stop(logp))``: Zheng et al., arXiv:2507.18071, eq. 7 and 14."""

    def ratio(self, tokens: Tokens) -> torch.Tensor:
        now = tokens.logprobs.detach()
        return bounded(tokens.sequence_mean(now - tokens.old_logprobs) + tokens.logprobs - now).exp()


class CISPO(PolicyLoss):
    """REINFORCE whose weight is clipped: MiniMax-M1, arXiv:2506.13585, eq. 4 and 5, without the lower bound.

    ``high`` is far above PPO's: Khatri et al., arXiv:2510.13786, found weights of up to 4 to 8 to do equally well.
    """

    metrics = ("clip_fraction", "ratio_mean")

    def __call__(self, tokens: Tokens) -> TokenLosses:
        ratio = bounded(tokens.logprobs.detach() - tokens.old_logprobs).exp()
        highest = 1 + self.settings.clip_high
        losses: torch.Tensor = -ratio.clamp(max=highest) * tokens.advantages * tokens.logprobs
        return TokenLosses(losses=losses, metrics={"clip_fraction": (ratio > highest).float(), "ratio_mean": ratio})


class TOPR(PolicyLoss):
    """Only what went badly is weighed by how likely it still is: Le Roux et al., arXiv:2503.14286.

    The ratio is to the policy that drew the sequence: it is a correction of its own.
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
    """Policy mirror descent, which comes down to REINFORCE with a shorter step: see the advantage of the same name."""

    def __call__(self, tokens: Tokens) -> TokenLosses:
        return TokenLosses(losses=-tokens.advantages * tokens.logprobs / (1 + self.settings.opmd_tau))


class SFT(PolicyLoss):
    """Ouyang et al., arXiv:2203.02155, section 3.5: the mean over tokens, each weighing what its demonstration says."""

    learns_from = "demonstrations"

    def __call__(self, tokens: Tokens) -> TokenLosses:
        return TokenLosses(losses=-tokens.logprobs)


class DPO(PolicyLoss):
    """Rafailov et al., arXiv:2305.18290, eq. 7; each token of a pair costs what the pair does."""

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
