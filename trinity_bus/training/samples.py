"""A batch's experience groups to samples that can be trained on, and what there is to say about them. Pure numpy.

What no model of this shape can be trained on (``schemas.trainable``) is left out, whoever wrote it: it counts as a
sample without a reward, so that its siblings are trained on as if it had never been drawn. The rule needs nothing but
the group and the model's shape, so a step that is repeated leaves out the same.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.experience import ExperienceGroup
from schemas.record import Metrics
from schemas.trainable import Bounds, Flaw, flaws
from trinity_bus.training.advantages import group_advantages
from trinity_bus.training.packing import TrainSample

LEFT_OUT = "samples_left_out"
"""Name of the metric that counts flawed samples; ``samples_left_out/<kind>`` counts those of a kind."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What a step trains on."""

    samples: list[TrainSample]
    """In the order of the groups; without those that teach nothing."""
    metrics: Metrics
    left_out: list[str]
    """Flawed samples, for people: which, and why."""
    response_tokens: int
    """Tokens of all samples that the policy drew, those that teach nothing included."""


def prepare(groups: Sequence[ExperienceGroup], *, version: int, bounds: Bounds, normalize_std: bool) -> TrainBatch:
    """Compute advantages, and leave out what has none and what is flawed.

    Args:
        groups: The batch, in order.
        version: Version of the weights that are about to be trained, for staleness.
        bounds: Of the model.
        normalize_std: See :func:`group_advantages`.
    """
    samples: list[TrainSample] = []
    flawed: list[tuple[ExperienceGroup, Flaw]] = []
    rewards: list[float] = []
    staleness: list[int] = []
    skipped = tokens = count = response_tokens = 0
    for group in groups:
        tokens += len(group.tokens)
        found = flaws(group, bounds)
        flawed += [(group, flaw) for flaw in found]
        given = group.rewards.copy()
        given[[flaw.sample for flaw in found]] = np.nan
        advantages = group_advantages(given, group.run_ids, normalize_std=normalize_std)
        rewards += given[~np.isnan(given)].tolist()
        skipped += advantages is None
        for index, sample in enumerate(group.samples()):
            count += 1
            response_tokens += int(sample.mask.sum())
            if sample.version_min >= 0:
                staleness.append(version - sample.version_min)
            if advantages is None or np.isnan(advantages[index]) or not sample.mask.any():
                continue
            # Weight 0 does not stop a NaN, and nothing is known of the log-probabilities of what the policy did not
            # draw.
            logprobs = np.where(sample.mask, sample.logprobs, np.float32(0))
            samples.append(
                TrainSample(
                    tokens=sample.tokens,
                    prompt_length=sample.prompt_length,
                    mask=sample.mask,
                    advantage=float(advantages[index]),
                    rollout_logprobs=logprobs,
                    old_logprobs=logprobs,
                )
            )
    metrics: Metrics = {
        "groups": float(len(groups)),
        "groups_skipped": float(skipped),
        "samples": float(count),
        "samples_trained": float(len(samples)),
        LEFT_OUT: float(len(flawed)),
        **{f"{LEFT_OUT}/{kind}": float(n) for kind, n in Counter(flaw.kind.value for _, flaw in flawed).items()},
        "tokens": float(tokens),
        "trained_tokens": float(sum(sample.trained_tokens for sample in samples)),
        **_statistics("reward", rewards),
        **_statistics("advantage", [sample.advantage for sample in samples]),
        **_statistics("staleness", staleness),
    }
    return TrainBatch(
        samples,
        metrics,
        [
            f"task {group.task_id}, attempt {group.attempt}, sample {flaw.sample}: {flaw.detail}"
            for group, flaw in flawed
        ],
        response_tokens,
    )


def _statistics(name: str, values: Sequence[float]) -> Metrics:
    if not values:
        return {}
    array = np.asarray(values, np.float64)
    return {
        f"{name}_mean": float(array.mean()),
        f"{name}_min": float(array.min()),
        f"{name}_max": float(array.max()),
        f"{name}_std": float(array.std()),
    }
