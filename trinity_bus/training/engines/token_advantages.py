"""The advantages of tokens, from what passes over the samples have told: see ``TokenAdvantage``.

Each rank finishes those of its own samples. What they are normalized by is of all ranks' samples.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from msgspec.structs import replace

from schemas.experience import Float32
from schemas.record import Metrics
from trinity_bus.training.layout import Layout
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.advantage import EQUAL, Float64, TokenAdvantage
from trinity_bus.training.objectives.objective import Objective
from trinity_bus.training.steps.packing import TrainSample

_EPSILON: Final = 1e-8


def finish(
    samples: Sequence[TrainSample], advantage: TokenAdvantage, objective: Objective, layout: Layout
) -> tuple[list[TrainSample], Metrics]:
    """Return a rank's samples, with advantages in the place of rewards, and metrics of those of all ranks."""
    found: dict[int, Float64] = {}
    expected: dict[int, Float64] = {}
    for place, sample in enumerate(samples):
        if sample.drawn:  # what examples say has none
            rewards = (sample.advantages - _penalties(sample, objective))[sample.mask].astype(np.float64)
            values = np.zeros(len(rewards)) if sample.values is None else sample.values[sample.mask].astype(np.float64)
            found[place], expected[place] = advantage.finish(rewards, values), values
    mean, std, lowest, highest = _statistics(list(found.values()), layout)
    finished = [
        replace(
            sample,
            advantages=_placed((found[place] - mean) / (std + _EPSILON), sample),
            returns=None if sample.values is None else _placed(expected[place] + found[place], sample),
        )
        if sample.drawn
        else sample
        for place, sample in enumerate(samples)
    ]
    metrics = {"mean": mean, "std": std, "min": lowest, "max": highest}
    told = {f"advantage_{name}": value for name, value in metrics.items()}
    if Need.VALUES in advantage.needs:
        _, spread, _, _ = _statistics([expected[place] + found[place] for place in found], layout)
        told["critic_explained_variance"] = 1 - std**2 / spread**2 if spread > EQUAL else 0.0
    return finished, told


def _penalties(sample: TrainSample, objective: Objective) -> Float32:
    if sample.ref_logprobs is None:
        return np.zeros_like(sample.advantages)
    both = torch.from_numpy(sample.old_logprobs.copy()), torch.from_numpy(sample.ref_logprobs.copy())
    penalties: Float32 = objective.penalties(*both).numpy()
    return penalties


def _placed(values: Float64, sample: TrainSample) -> Float32:
    placed = np.zeros(len(sample.mask), np.float32)
    placed[sample.mask] = values
    return placed


def _statistics(parts: Sequence[Float64], layout: Layout) -> tuple[float, float, float, float]:
    # Mean, deviation, lowest and highest of the values of all ranks; zeros where nobody has any
    values = np.concatenate([np.empty(0), *parts])
    sums = torch.tensor([len(values), values.sum(), np.square(values).sum()], dtype=torch.float64, device=layout.device)
    ends = torch.tensor(
        [-values.min(initial=np.inf), values.max(initial=-np.inf)], dtype=torch.float64, device=layout.device
    )
    if (group := layout.data_group) is not None:
        dist.all_reduce(sums, group=group)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    count, total, squares = sums.tolist()
    if count == 0:
        return 0.0, 0.0, 0.0, 0.0
    mean = total / count
    return mean, max(squares / count - mean * mean, 0.0) ** 0.5, -float(ends[0]), float(ends[1])
