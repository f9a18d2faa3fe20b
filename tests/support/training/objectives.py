"""Tokens made by hand, and what an objective makes of them."""

import torch

from trinity_bus.config import TrainerSettings
from trinity_bus.training.objectives.losses import Tokens
from trinity_bus.training.objectives.objective import Objective


def tokens(
    logprobs: list[float],
    *,
    old: list[float] | None = None,
    rollout: list[float] | None = None,
    ref: list[float] | None = None,
    advantages: list[float],
    weight: list[float] | None = None,
    entropy: list[float] | None = None,
    bounds: list[int] | None = None,
) -> Tokens:
    n = len(logprobs)
    return Tokens(
        logprobs=torch.tensor(logprobs, requires_grad=True),
        entropy=torch.tensor(entropy or [0.0] * n, requires_grad=True),
        old_logprobs=torch.tensor(old or logprobs),
        rollout_logprobs=torch.tensor(rollout or old or logprobs),
        ref_logprobs=None if ref is None else torch.tensor(ref),
        advantages=torch.tensor(advantages),
        weight=torch.tensor(weight or [1.0 / n] * n),
        bounds=torch.tensor(bounds or [0, n], dtype=torch.int32),
    )


def evaluate(what: Tokens, settings: TrainerSettings) -> tuple[float, list[float], dict[str, float]]:
    objective = Objective(settings)
    loss, metrics = objective.loss(what)
    loss.backward()
    assert what.logprobs.grad is not None
    return loss.item(), what.logprobs.grad.tolist(), dict(zip(objective.metrics, metrics.tolist(), strict=True))
