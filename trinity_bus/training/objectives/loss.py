"""The contract of policy losses: from the log-probabilities of a micro-batch to what each of its tokens costs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import torch

from trinity_bus.config import TrainerSettings
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
