"""Policy losses: from the log-probabilities of a micro-batch, and advantages, to what each of its tokens costs.

First the contract; docs/objectives.md has the formulas.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import torch
from torch.nn.functional import logsigmoid

from trinity_bus.config import TrainerSettings
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import Need

# Log ratios are cut here before ``exp``, so that one broken token cannot make an infinity
_MAX_LOG_RATIO: Final = 20.0


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What is known of the tokens of a micro-batch, [tokens] float32 but ``bounds``.

    Values where ``weight`` is 0 do not matter.
    """

    # Under the weights that are trained; has a gradient
    logprobs: torch.Tensor
    # Of the distribution that the token was drawn from; has a gradient
    entropy: torch.Tensor
    # Under the policy that the update stays close to
    old_logprobs: torch.Tensor
    # Under the policy that drew the token, as the rollout engine computed them
    rollout_logprobs: torch.Tensor
    ref_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    # 0 on what is not trained on
    weight: torch.Tensor
    # [sequences + 1] int32: where each sequence begins; the last entry is the number of tokens
    bounds: torch.Tensor
    # bool, False where an example says the token and no policy drew it; None where all are drawn. What is not drawn has
    # the policy's own log-probabilities as old ones and those of the rollout.
    drawn: torch.Tensor | None = None
    # [sequences] int32, the same for the two answers of a preference, the chosen one with an advantage of 1 and the
    # rejected one with -1; None where there are none.
    pairs: torch.Tensor | None = None

    @property
    def owners(self) -> torch.Tensor:
        # [tokens] of which sequence each is
        counts = self.bounds.diff().long()
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)

    def sequence_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return for each token the sum of values over the trained tokens of its sequence, [tokens]."""
        count, owner = len(self.bounds) - 1, self.owners
        # Where nothing is trained values need not be numbers.
        trained = torch.where(self.weight != 0, values, 0.0)
        return values.new_zeros(count).index_add(0, owner, trained)[owner]

    def sequence_mean(self, values: torch.Tensor) -> torch.Tensor:
        return self.sequence_sum(values) / self.sequence_sum(torch.ones_like(values)).clamp(min=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """What tokens cost, and what there is to report of them; all [tokens]."""

    losses: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)


class PolicyLoss(ABC):
    needs: ClassVar[Need] = Need.NOTHING
    # What the samples are that it is given. A trainer whose loss learns from examples needs no explorer.
    learns_from: ClassVar[Literal["experiences", "demonstrations", "preferences"]] = "experiences"
    # Whether it weighs tokens by itself by what another policy drew them with, so that no correction may do so too.
    corrects: ClassVar[bool] = False
    # Names of what it reports: means over trained tokens
    metrics: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: TrainerSettings) -> None:
        self.settings = settings

    @abstractmethod
    def __call__(self, tokens: Tokens) -> TokenLosses:
        """Compute the losses of a micro-batch, with all of :attr:`metrics`."""


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
