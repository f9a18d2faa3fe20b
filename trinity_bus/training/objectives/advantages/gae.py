"""GAE: generalized advantage estimation, with a critic that says what may be expected from each token on.

With ``V_t`` of the critic, 0 after the last token, over the trained tokens of a sample::

    delta_t = r_t + gamma V_(t+1) - V_t
    A_t     = delta_t + gamma lambda A_(t+1)
    A       = (A - mean) / (std + epsilon)                  over all trained tokens of the step

``r_t`` is the sample's reward at the last token, less the KL penalty of each where that is in the reward. The critic is
trained towards ``V_t + A_t``, before A is normalized: see ``critic``. No group is skipped.

Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv:1506.02438,
eq. 11 and 16.
"""

from typing import ClassVar

import numpy as np

from trinity_bus.training.objectives.advantages.advantage import Float64, TokenAdvantage
from trinity_bus.training.objectives.needs import Need


class GAE(TokenAdvantage):
    needs: ClassVar[Need] = Need.VALUES

    def finish(self, rewards: Float64, values: Float64) -> Float64:
        gamma, decay = self.settings.gae_gamma, self.settings.gae_gamma * self.settings.gae_lambda
        deltas = rewards + gamma * np.append(values[1:], 0.0) - values
        advantages = np.empty_like(deltas)
        following = 0.0
        for token in range(len(deltas) - 1, -1, -1):
            advantages[token] = following = deltas[token] + decay * following
        return advantages
