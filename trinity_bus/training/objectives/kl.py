"""Estimators of KL(policy || reference) from the tokens that the policy drew: see docs/objectives.md.

On policy ``k1`` and ``k3`` are unbiased, ``k2`` is nearly so where the policies are near. Sources: Schulman,
"Approximating KL Divergence", 2020, joschu.net/blog/kl-approx.html; the cut is that of verl's ``low_var_kl``.
"""

from collections.abc import Callable
from typing import Final

import torch

from trinity_bus.training.objectives.loss import bounded

_HIGHEST: Final = 10.0


def k1(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the estimate from log-probability under the policy less that under the reference."""
    return log_ratio


def k2(log_ratio: torch.Tensor) -> torch.Tensor:
    return bounded(log_ratio).square() / 2


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    within = bounded(log_ratio)
    return torch.expm1(-within) + within


def low_variance(log_ratio: torch.Tensor) -> torch.Tensor:
    return k3(log_ratio).clamp(max=_HIGHEST)


# By their names in ``trainer.kl_estimator``
ESTIMATORS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "low_variance": low_variance,
}
