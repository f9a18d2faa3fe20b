"""Importance sampling as it is: ``w = pi_old / mu``.

With ``trainer.loss=ppo`` and ``trainer.old_logprobs=recompute`` this is decoupled PPO: one policy has drawn the tokens,
and the loss stays close to another one, the *proximal* policy, which is that of the start of the step::

    loss = -(pi_old / mu) min(r A, clip(r, 1 - low, 1 + high) A)        r = pi / pi_old

Source: Hilton et al., "Batch size-invariance for policy optimization", arXiv:2110.00641; for language models Fu et
al., "AReaL", arXiv:2505.24298. Its variance has no bound; ``truncated`` has one.
"""

import torch

from trinity_bus.training.objectives.corrections.correction import Corrected, Correction
from trinity_bus.training.objectives.losses.loss import Tokens


class Unbounded(Correction):
    def __call__(self, importance: torch.Tensor, tokens: Tokens) -> Corrected:
        del tokens  # their importance is enough
        return Corrected(importance, torch.zeros_like(importance, dtype=torch.bool))
