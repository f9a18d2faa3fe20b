"""A batch's experience groups to samples that can be trained on, and what there is to say about them. Pure numpy.

What no model could be trained on is not among them any more: see ``choice``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from msgspec import structs

from schemas.experience import ExperienceGroup, Float32, Sample
from schemas.groups.kept import decode_kept
from schemas.record import Metrics
from trinity_bus.config import TrainerSettings
from trinity_bus.training.families import ModelShape
from trinity_bus.training.objectives.advantages import Advantage, Float64, GroupAdvantages, ScoredSample
from trinity_bus.training.steps.packing import TrainSample


@dataclass(frozen=True, slots=True)
class TrainBatch:
    # In the order of the groups; without those that teach nothing
    samples: list[TrainSample]
    # Samples of each group, which their numbers count through
    sizes: list[int]
    metrics: Metrics
    # Tokens of all samples that the policy drew, those that teach nothing included
    response_tokens: int


def prepare(groups: Sequence[ExperienceGroup], *, version: int, advantage: Advantage) -> TrainBatch:
    """Compute advantages, and pass over what has none; ``version`` is that of the weights before, for staleness."""
    views, advantages = _judged(groups, advantage)
    firsts = accumulate(map(len, groups), initial=0)
    made = [
        (sample, train_sample)
        for first, view, given in zip(firsts, views, advantages, strict=False)
        if given is not None
        for (place, sample), values in zip(view, given, strict=True)
        if (train_sample := _train_sample(sample, values, first + place)) is not None
    ]
    samples = [train_sample for _, train_sample in made]
    everything = [sample for view in views for _, sample in view if not _is_greedy(sample)]
    response_tokens = sum(int(np.count_nonzero(sample.mask)) for sample in everything)
    skipped = sum(given is None for given in advantages)
    rewards = [sample.reward for sample in everything if not math.isnan(sample.reward)]
    staleness = [version - sample.version_min for sample in everything if sample.version_min >= 0]
    metrics: Metrics = {
        "groups": float(len(groups)),
        "groups_skipped": float(skipped),
        "samples": float(len(everything)),
        "samples_trained": float(len(samples)),
        "samples_limited": float(sum(s.sampling is not None and s.sampling.is_limited for s in everything)),
        "tokens": float(sum(len(sample.tokens) for sample in everything)),
        "trained_tokens": float(sum(sample.trained_tokens for sample in samples)),
        "tokens_without_kept": float(sum(int(np.count_nonzero(of.mask)) - one.trained_tokens for of, one in made)),
        **_statistics("reward", rewards),
        **_statistics("advantage", _mean_advantages(samples)),
        **_statistics("staleness", staleness),
    }
    return TrainBatch(samples, [len(group) for group in groups], metrics, response_tokens)


def with_routes(
    samples: Sequence[TrainSample], shape: ModelShape, *, replay: bool
) -> tuple[list[TrainSample], Metrics]:
    """Return samples with the experts that an engine's routers chose for each token, for the trainer's to choose.

    Engine and trainer compute with different kernels, so their routers differ on tokens that are nearly a draw (Ma et
    al., arXiv:2510.11370). What a chosen expert weighs is computed from the trainer's own router, which therefore
    learns. Where there are no routes, or they are of another number of layers or experts a token, or name an expert
    twice or one that there is not, the trainer's own routers choose.
    """
    if not replay:
        return [sample if sample.routes is None else structs.replace(sample, routes=None) for sample in samples], {}
    kept = [sample if _usable_routes(sample, shape) else structs.replace(sample, routes=None) for sample in samples]
    return kept, {"samples_without_routes": float(sum(sample.routes is None for sample in kept))}


def _usable_routes(sample: TrainSample, shape: ModelShape) -> bool:
    routes = sample.routes
    if routes is None or routes.shape[1] != shape.layers * shape.experts_per_token:
        return False
    ordered = np.sort(routes.reshape(-1, shape.experts_per_token), axis=1)
    return bool((ordered[:, 1:] != ordered[:, :-1]).all() and ordered.max() < shape.experts)


def teach(groups: Sequence[ExperienceGroup], advantage: Advantage) -> list[bool]:
    return [given is not None for given in _judged(groups, advantage)[1]]


def compared(group: ExperienceGroup, advantage: Advantage) -> dict[int, Float32] | None:
    """Return the advantages of a group by itself: of each sample that takes part, [response], by its place in it."""
    (view,), (given,) = _judged([group], advantage)
    return None if given is None else {place: values for (place, _), values in zip(view, given, strict=True)}


def _judged(
    groups: Sequence[ExperienceGroup], advantage: Advantage
) -> tuple[list[list[tuple[int, Sample]]], list[GroupAdvantages]]:
    # The samples of each group that take part, with their places in it, and their advantages
    views = [
        [(at, sample) for at, sample in enumerate(group.samples()) if advantage.wants_greedy or not _is_greedy(sample)]
        for group in groups
    ]
    return views, advantage([[_scored(sample, advantage.settings) for _, sample in view] for view in views])


def _scored(sample: Sample, settings: TrainerSettings) -> ScoredSample:
    return ScoredSample(
        run=sample.run_id,
        reward=sample.reward - overlong_penalty(int(np.count_nonzero(sample.mask)), settings),
        mask=sample.mask,
        logprobs=sample.logprobs,
        teacher_logprobs=sample.teacher_logprobs,
        turn_starts=sample.turn_starts,
        turn_rewards=sample.turn_rewards,
        is_greedy=_is_greedy(sample),
    )


def overlong_penalty(tokens: int, settings: TrainerSettings) -> float:
    """Return what a response loses of its reward as it comes near to the longest that is allowed.

    With ``n`` tokens of the model's own, ``m = mesh.max_tokens`` and ``b = trainer.overlong_buffer``::

        penalty = clip((n - (m - b)) / b, 0, 1) * trainer.overlong_penalty

    Source: Yu et al., "DAPO", arXiv:2503.14476, eq. 13, where the highest penalty is 1.
    """
    if settings.overlong_buffer is None:
        return 0.0
    beyond = tokens - (settings.max_tokens - settings.overlong_buffer)
    return min(max(beyond / settings.overlong_buffer, 0.0), 1.0) * settings.overlong_penalty


def _is_greedy(sample: Sample) -> bool:
    return sample.sampling is not None and sample.sampling.temperature == 0


def _train_sample(sample: Sample, advantages: Float32, number: int) -> TrainSample | None:
    # None where nothing of it is to be trained on
    mask = sample.mask
    if sample.kept is not None and sample.sampling is not None and sample.sampling.is_limited:
        # How large a set is does not depend on which token is drawn from it: that leaves out no choice by its outcome.
        mask = mask & (decode_kept(sample.kept, len(mask)).counts > 0)
    if not np.count_nonzero(mask) or np.count_nonzero(np.isnan(advantages)):
        return None
    # Weight 0 does not stop a NaN, and nothing is known of the log-probabilities of what the policy did not draw.
    logprobs = np.where(mask, sample.logprobs, np.float32(0))
    return TrainSample(
        tokens=sample.tokens,
        prompt_length=sample.prompt_length,
        mask=mask,
        advantages=advantages,
        rollout_logprobs=logprobs,
        old_logprobs=logprobs,
        temperature=None if sample.sampling is None else sample.sampling.temperature,
        routes=None if sample.routes is None else sample.routes.reshape(len(sample.tokens), -1),
        kept=sample.kept,
        number=number,
    )


def _mean_advantages(samples: Sequence[TrainSample]) -> Float64:
    if not samples:
        return np.empty(0)
    starts = list(accumulate((len(sample.mask) for sample in samples[:-1]), initial=0))
    trained = np.concatenate([sample.advantages * sample.mask for sample in samples])
    means: Float64 = np.add.reduceat(trained, starts, dtype=np.float64) / [s.trained_tokens for s in samples]
    return means


def _statistics(name: str, values: Sequence[float] | Float64) -> Metrics:
    if len(values) == 0:
        return {}
    array = np.asarray(values, np.float64)
    return {
        f"{name}_mean": float(array.mean()),
        f"{name}_min": float(array.min()),
        f"{name}_max": float(array.max()),
        f"{name}_std": float(array.std()),
    }
