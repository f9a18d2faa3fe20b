"""Direct preference optimization: the chosen answer is to gain on the rejected one, beside a reference.

For each pair, sums being over the tokens of an answer::

    margin = beta (sum(logp - logp_ref) of the chosen - sum(logp - logp_ref) of the rejected)
    loss   = -log sigmoid(margin)

The loss of an update is the mean over its pairs, each weighing what it says. Source: Rafailov et al., "Direct
Preference Optimization", arXiv:2305.18290, eq. 7. The reference is the model that training began with.
"""

import torch
from torch.nn.functional import logsigmoid

from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives.losses.loss import PolicyLoss, TokenLosses, Tokens
from trinity_bus.training.objectives.needs import Need


class DPO(PolicyLoss):
    """Each token of a pair costs what the pair does; together they weigh what the pair weighs."""

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
