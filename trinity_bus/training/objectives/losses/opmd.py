"""OPMD: policy mirror descent on samples of any policy, which comes down to REINFORCE with a shorter step.

::

    loss = -A logp / (1 + tau)

with ``tau`` the strength of the pull to the present policy, in units of reward: see ``trainer.opmd_tau``.

Sources: Kimi Team, "Kimi k1.5", arXiv:2501.12599, section 2.3.2; Yao et al., "Group-Relative REINFORCE Is Secretly an
Off-Policy Algorithm", arXiv:2509.24203. To be used with the advantage of the same name.
"""

from trinity_bus.training.objectives.losses.loss import PolicyLoss, TokenLosses, Tokens


class OPMDLoss(PolicyLoss):
    """REINFORCE over one plus ``trainer.opmd_tau``; it looks at no ratio."""

    def __call__(self, tokens: Tokens) -> TokenLosses:
        return TokenLosses(losses=-tokens.advantages * tokens.logprobs / (1 + self.settings.opmd_tau))
