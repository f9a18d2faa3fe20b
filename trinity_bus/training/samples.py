"""A batch's experience groups to samples that can be trained on, and what there is to say about them. Pure numpy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.experience import ExperienceGroup, Sample
from schemas.record import Metrics
from trinity_bus.training.advantages import group_advantages
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.packing import TrainSample


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What a step trains on."""

    samples: list[TrainSample]
    """In the order of the groups; without those that teach nothing."""
    metrics: Metrics


def prepare(groups: Sequence[ExperienceGroup], *, version: int, vocabulary: int, normalize_std: bool) -> TrainBatch:
    """Computes advantages and leaves out what has none.

    Args:
        groups: The batch, in order.
        version: Version of the weights that are about to be trained, for staleness.
        vocabulary: Token ids lie below it.
        normalize_std: See :func:`group_advantages`.

    Raises:
        TrainingError: A sample cannot be trained on by this model.
    """
    samples: list[TrainSample] = []
    rewards: list[float] = []
    staleness: list[int] = []
    skipped = tokens = count = 0
    for group in groups:
        tokens += len(group.tokens)
        try:
            advantages = group_advantages(group.rewards, normalize_std=normalize_std)
        except ValueError as error:
            raise TrainingError(f"task {group.task_id}, attempt {group.attempt}: {error}") from error
        rewards += group.rewards[~np.isnan(group.rewards)].tolist()
        skipped += advantages is None
        for index, sample in enumerate(group.samples()):
            _check(group, index, sample, vocabulary)
            count += 1
            if sample.version_min >= 0:
                staleness.append(version - sample.version_min)
            if advantages is None or np.isnan(advantages[index]) or not sample.mask.any():
                continue
            samples.append(
                TrainSample(
                    tokens=sample.tokens,
                    prompt_length=sample.prompt_length,
                    mask=sample.mask,
                    advantage=float(advantages[index]),
                    rollout_logprobs=sample.logprobs,
                    old_logprobs=sample.logprobs,
                )
            )
    metrics: Metrics = {
        "groups": float(len(groups)),
        "groups_skipped": float(skipped),
        "samples": float(count),
        "samples_trained": float(len(samples)),
        "tokens": float(tokens),
        "trained_tokens": float(sum(sample.trained_tokens for sample in samples)),
        **_statistics("reward", rewards),
        **_statistics("advantage", [sample.advantage for sample in samples]),
        **_statistics("staleness", staleness),
    }
    return TrainBatch(samples, metrics)


def _check(group: ExperienceGroup, index: int, sample: Sample, vocabulary: int) -> None:
    who = f"task {group.task_id}, attempt {group.attempt}, sample {index}"
    if sample.prompt_length < 1:
        raise TrainingError(f"{who} has no prompt: nothing predicts its first token")
    lowest, highest = int(sample.tokens.min()), int(sample.tokens.max())
    if lowest < 0 or highest >= vocabulary:
        raise TrainingError(f"{who} has token ids {lowest} to {highest}; the model's vocabulary is {vocabulary}")
    if not np.isfinite(sample.logprobs[sample.mask]).all():
        raise TrainingError(f"{who} has logprobs that are not finite")


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
