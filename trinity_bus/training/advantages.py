"""Rewards of a group to advantages: how much better a sample did than its siblings. Pure numpy.

``A_i = (r_i - mean(r)) / (std(r) + epsilon)`` over the samples of one task (GRPO, Shao et al., arXiv:2402.03300,
section 4.1.2), with the population's standard deviation; without the division where it is turned off (Liu et al.,
"Understanding R1-Zero-Like Training", arXiv:2503.20783). Samples without a reward (NaN) take no part. A group whose
rewards are all equal teaches nothing and is skipped, as in DAPO's dynamic sampling (arXiv:2503.14476, section 3.2).
"""

from typing import Final

import numpy as np

from schemas.experience import Float32

_EPSILON: Final = 1e-4
_EQUAL: Final = 1e-6
"""A standard deviation below this is rounding, not a difference."""


def group_advantages(rewards: Float32, *, normalize_std: bool = True) -> Float32 | None:
    """Advantages of one group.

    Args:
        rewards: [samples]; NaN where there is none. Infinite rewards are an error of the workflow.
        normalize_std: Whether to divide by the standard deviation.

    Returns:
        [samples], NaN where there is no reward; None where the group teaches nothing.

    Raises:
        ValueError: A reward is infinite.
    """
    if np.isinf(rewards).any():
        raise ValueError(f"rewards must be finite or NaN, got {rewards.tolist()}")
    # In float64: a mean of equal float32 values need not be equal to them.
    given = rewards[~np.isnan(rewards)].astype(np.float64)
    if len(given) == 0 or given.std() < _EQUAL:
        return None
    scale = given.std() + _EPSILON if normalize_std else 1.0
    advantages: Float32 = ((rewards - given.mean()) / scale).astype(np.float32)
    return advantages
