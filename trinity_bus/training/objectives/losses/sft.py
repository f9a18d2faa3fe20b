"""Supervised fine-tuning: the negative log-likelihood of what is shown.

``-logp`` of each token of an answer; the loss of an update is the mean over the tokens of its demonstrations, those of
each weighing what it says (Ouyang et al., "Training language models to follow instructions with human feedback",
arXiv:2203.02155, section 3.5).
"""

from trinity_bus.training.objectives.losses.loss import PolicyLoss, TokenLosses, Tokens


class SFT(PolicyLoss):
    learns_from = "demonstrations"

    def __call__(self, tokens: Tokens) -> TokenLosses:
        return TokenLosses(losses=-tokens.logprobs)
