"""A batch's experience groups to samples that can be trained on, and what there is to say about them. Pure numpy.

What no model of this shape can be trained on (``schemas.trainable``) is left out, whoever wrote it: it counts as a
sample without a reward, so that its siblings are trained on as if it had never been drawn. The rule needs nothing but
the group and the model's shape, so a step that is repeated leaves out the same.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.experience import ExperienceGroup, Float32, Sample
from schemas.record import Metrics
from schemas.trainable import Bounds, flaws
from trinity_bus.training.objectives.advantages.advantage import Advantage, ScoredSample
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


def prepare(groups: Sequence[ExperienceGroup], *, version: int, bounds: Bounds, advantage: Advantage) -> TrainBatch:
    """Compute advantages, and leave out what has none and what is flawed.

    Args:
        groups: The batch, in order.
        version: Version of the weights that are about to be trained, for staleness.
        bounds: Of the model.
        advantage: Computes the advantages of the batch.
    """
    views = [list(group.samples()) for group in groups]
    found = [{flaw.sample: flaw for flaw in flaws(group, bounds)} for group in groups]
    flawed = [(group, flaw) for group, flaws_of in zip(groups, found, strict=True) for flaw in flaws_of.values()]
    scored = [
        [
            ScoredSample(run=sample.run_id, reward=math.nan if index in flaws_of else sample.reward, mask=sample.mask)
            for index, sample in enumerate(view)
        ]
        for view, flaws_of in zip(views, found, strict=True)
    ]
    advantages = advantage(scored)
    samples = [
        train_sample
        for view, flaws_of, given in zip(views, found, advantages, strict=True)
        if given is not None
        for index, sample in enumerate(view)
        if index not in flaws_of and (train_sample := _train_sample(sample, given[index])) is not None
    ]
    everything = [sample for view in views for sample in view]
    response_tokens = sum(int(sample.mask.sum()) for sample in everything)
    skipped = sum(given is None for given in advantages)
    rewards = [sample.reward for group in scored for sample in group if not math.isnan(sample.reward)]
    staleness = [version - sample.version_min for sample in everything if sample.version_min >= 0]
    metrics: Metrics = {
        "groups": float(len(groups)),
        "groups_skipped": float(skipped),
        "samples": float(len(everything)),
        "samples_trained": float(len(samples)),
        LEFT_OUT: float(len(flawed)),
        **{f"{LEFT_OUT}/{kind}": float(n) for kind, n in Counter(flaw.kind.value for _, flaw in flawed).items()},
        "tokens": float(sum(len(group.tokens) for group in groups)),
        "trained_tokens": float(sum(sample.trained_tokens for sample in samples)),
        **_statistics("reward", rewards),
        **_statistics("advantage", [float(sample.advantages[sample.mask].mean()) for sample in samples]),
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


def _train_sample(sample: Sample, advantages: Float32) -> TrainSample | None:
    """Return a sample as the trainer takes it; None where nothing of it is to be trained on."""
    if not sample.mask.any() or np.isnan(advantages).any():
        return None
    # Weight 0 does not stop a NaN, and nothing is known of the log-probabilities of what the policy did not draw.
    logprobs = np.where(sample.mask, sample.logprobs, np.float32(0))
    return TrainSample(
        tokens=sample.tokens,
        prompt_length=sample.prompt_length,
        mask=sample.mask,
        advantages=advantages,
        rollout_logprobs=logprobs,
        old_logprobs=logprobs,
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
