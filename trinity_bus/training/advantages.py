"""Rewards of a group to advantages: how much better a sample did than its siblings. Pure numpy.

``A_i = (r_i - mean(r)) / (std(r) + epsilon)`` of the samples of one task (GRPO, Shao et al., arXiv:2402.03300, section
4.1.2), with the population's standard deviation; without the division where it is turned off (Liu et al.,
"Understanding R1-Zero-Like Training", arXiv:2503.20783). Mean and deviation are over the runs of the task, each with
the mean reward of its samples: one that gave many, a step each, weighs no more than the others. Samples without a
reward (NaN) take no part. A group whose rewards are all equal teaches nothing and is skipped, as in DAPO's dynamic
sampling (arXiv:2503.14476, section 3.2).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.experience import Float32, Int32

_EPSILON: Final = 1e-4
_EQUAL: Final = 1e-6
"""A standard deviation below this is rounding, not a difference."""


def group_advantages(rewards: Float32, run_ids: Int32 | None = None, *, normalize_std: bool = True) -> Float32 | None:
    """Advantages of one group.

    Args:
        rewards: [samples]; NaN where there is none. Infinite rewards are an error of the workflow.
        run_ids: [samples] of which run each is; None: each is one.
        normalize_std: Whether to divide by the standard deviation.

    Returns:
        [samples], NaN where there is no reward; None where the group teaches nothing.

    Raises:
        ValueError: A reward is infinite.
    """
    if np.isinf(rewards).any():
        raise ValueError(f"rewards must be finite or NaN, got {rewards.tolist()}")
    # In float64: a mean of equal float32 values need not be equal to them.
    has_reward = ~np.isnan(rewards)
    given = rewards[has_reward].astype(np.float64)
    if run_ids is not None:
        given = _of_runs(given, run_ids[has_reward])
    if len(given) == 0 or given.std() < _EQUAL:
        return None
    scale = given.std() + _EPSILON if normalize_std else 1.0
    advantages: Float32 = ((rewards - given.mean()) / scale).astype(np.float32)
    return advantages


def _of_runs(rewards: NDArray[np.float64], run_ids: Int32) -> NDArray[np.float64]:
    """Return the mean reward of each run; the rewards as they are where each run has one."""
    _, owners, counts = np.unique(run_ids, return_inverse=True, return_counts=True)
    return rewards if len(counts) == len(rewards) else np.bincount(owners, weights=rewards) / counts
