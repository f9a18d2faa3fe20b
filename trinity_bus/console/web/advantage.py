"""What a group teaches: each run's reward beside those of the others. Pure.

The trainer computes advantages from the whole batch and its settings; this is the part of GRPO's that a group alone
decides (https://arxiv.org/abs/2402.03300, section 4.1.2)::

    advantage = (reward - mean) / (deviation + 1e-6)

Where all runs have the same reward it is 0 for each: the group teaches nothing.
"""

import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Final

_EPSILON: Final = 1e-6


def group_advantages(rewards: Sequence[float]) -> list[float | None]:
    """Return the advantage of each run within its group; None for those without a reward.

    >>> group_advantages([1.0, 0.0])
    [0.999998000004, -0.999998000004]
    >>> group_advantages([1.0, 1.0, float("nan")])
    [0.0, 0.0, None]
    """
    known = [reward for reward in rewards if math.isfinite(reward)]
    if not known:
        return [None] * len(rewards)
    mean, deviation = fmean(known), pstdev(known)
    return [
        round((reward - mean) / (deviation + _EPSILON), 12) if math.isfinite(reward) else None for reward in rewards
    ]


def teaches_nothing(rewards: Sequence[float]) -> bool:
    """Whether all rewards of a group are the same, so that no run is better than could be expected."""
    known = {reward for reward in rewards if math.isfinite(reward)}
    return len(known) < 2
