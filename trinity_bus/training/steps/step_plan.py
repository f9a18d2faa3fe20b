"""From a batch's samples to the updates of a step, and to the shard of each that a data-parallel rank trains on. Pure.

Groups are shuffled by ``(seed, step)``, and the samples of one stay together, so that its prompt is computed once
(:func:`~trinity_bus.training.steps.packing.shared_prompts`); all are divided into updates of equal numbers of samples.
Each update is dealt to the ranks longest sample first, always to the rank with the fewest tokens (Graham's LPT rule,
1969: at most 4/3 of the best that is possible). Where ranks compute a prompt once, whole groups are dealt so, if the
rank with the most to compute has less then: of 32 groups of 8, with prompts of 400 tokens and responses of lengths with
a long tail, a tenth less on 4 ranks. What the sum over an update's tokens is divided by is that of the whole update, so
gradients are summed over ranks and not averaged: with ``s`` samples, ``n`` tokens in a sample, and ``u`` updates::

    trainer.loss_normalizer     weight of a token, over all micro-batches and ranks         an update is ...
    batch                       u / (response tokens of the batch)                          a token-level mean, DAPO's
    update                      1 / (trained tokens of the update)                          the same, of itself
    sequence                    u / (s n)                                                   a mean of means, GRPO's
    constant                    u / (s trainer.max_tokens)                                  a sum, Dr. GRPO's
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from schemas.record import Metrics
from trinity_bus.config import TrainerSettings
from trinity_bus.training.steps.packing import TrainSample, computed_tokens, units
from trinity_bus.training.steps.samples import TrainBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One update of the weights, or a rank's shard of it."""

    samples: Sequence[TrainSample]
    # What the sum over the tokens of all ranks is divided by
    divisor: float
    # What those tokens weigh together before that: as many as they are, where each weighs 1
    weight: float

    def shard(self, rank: int, ranks: int, *, share: bool) -> "Update":
        # At least one sample, which weighs nothing where none is left
        mine = _dealt(self.samples, ranks, share=share)[rank]
        if not mine:
            # The others wait for this rank's gradients: it computes the cheapest that there is, all zero.
            shortest = min(self.samples, key=lambda sample: len(sample.tokens))
            mine = [structs.replace(shortest, mask=np.zeros_like(shortest.mask), number=None)]
        return replace(self, samples=mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    # None where there is nothing to learn
    updates: Sequence[Update]
    trained_tokens: int
    # What there is to say of the batch
    metrics: Metrics = field(default_factory=dict)

    def shard(self, rank: int, ranks: int, *, share: bool = False) -> "StepPlan":
        """Return a rank's shard. ``share``: whether ranks compute a prompt once."""
        if ranks == 1:
            return self
        return replace(self, updates=[update.shard(rank, ranks, share=share) for update in self.updates])


def plan_step(batch: TrainBatch, settings: TrainerSettings, *, step: int) -> StepPlan:
    """Divide a batch into updates. ``step`` counts the steps trained before this one."""
    samples, tokens = batch.samples, int(batch.metrics["trained_tokens"])
    if not samples:
        return StepPlan(updates=(), trained_tokens=tokens, metrics=batch.metrics)
    order = _order(samples, np.random.default_rng((settings.seed, step)))
    count = settings.mini_batches
    if settings.loss_normalizer == "update":
        # Where groups are skipped there are fewer updates, not smaller ones: the mean over few samples is mostly
        # noise, and Adam makes full steps of it.
        count = max(1, round(count * len(samples) / batch.metrics["samples"]))
    parts = np.array_split(order, min(count, len(samples)))
    # An equal part of the whole batch for each update, so that the less it teaches the smaller they are.
    whole = {
        "batch": batch.response_tokens,
        "sequence": batch.metrics["samples"],
        "constant": batch.metrics["samples"] * settings.max_tokens,
    }
    updates = []
    for part in parts:
        chosen = [_scaled(samples[i], settings) for i in part]
        weight = _weight(chosen)
        divisor = weight if settings.loss_normalizer == "update" else whole[settings.loss_normalizer] / len(parts)
        updates.append(Update(samples=chosen, divisor=divisor, weight=weight))
    return StepPlan(updates=updates, trained_tokens=tokens, metrics=batch.metrics)


def _order(samples: Sequence[TrainSample], rng: np.random.Generator) -> list[int]:
    groups = [list(group) for _, group in itertools.groupby(range(len(samples)), lambda i: samples[i].prompt_key)]
    return [index for group in rng.permutation(len(groups)) for index in groups[group]]


def plan_examples(samples: Sequence[TrainSample], settings: TrainerSettings) -> StepPlan:
    """Divide examples into updates, in their order, each divided by what its own tokens weigh."""
    samples = [sample for sample in samples if sample.scale]
    updates = []
    for part in _parts(samples, settings.mini_batches):
        weight = _weight(part)
        updates.append(Update(samples=part, divisor=weight, weight=weight))
    tokens = sum(sample.trained_tokens for sample in samples)
    metrics: Metrics = {
        "examples": float(len(units(samples))),
        "samples": float(len(samples)),
        "samples_trained": float(len(samples)),
        "tokens": float(sum(len(sample.tokens) for sample in samples)),
        "trained_tokens": float(tokens),
    }
    return StepPlan(updates=updates, trained_tokens=tokens, metrics=metrics)


def mixed(plan: StepPlan, samples: Sequence[TrainSample], settings: TrainerSettings) -> StepPlan:
    """Return a plan that learns from demonstrations too: of each update a part of ``trainer.mix_coef``, ``mu``.

    ``(1 - mu)`` times the loss of the plan, and ``mu`` times the mean over the tokens of the update's demonstrations:
    Zhang et al., "On-Policy RL Meets Off-Policy Experts" (CHORD), arXiv:2508.11408.
    """
    samples, mu = [sample for sample in samples if sample.scale], settings.mix_coef
    if not samples:
        return plan
    empty = Update(samples=(), divisor=1.0, weight=0.0)
    own = list(plan.updates) or [empty] * min(settings.mini_batches, len(samples))
    shown = _parts(samples, len(own))
    updates = []
    for update, part in zip(own, [*shown, *[[]] * (len(own) - len(shown))], strict=True):
        drawn = [structs.replace(sample, scale=sample.scale * (1 - mu)) for sample in update.samples]
        share = mu * update.divisor / _weight(part) if part else 0.0
        both = [*drawn, *(structs.replace(sample, scale=sample.scale * share) for sample in part)]
        updates.append(replace(update, samples=both, weight=_weight(both)))
    tokens = plan.trained_tokens + sum(sample.trained_tokens for sample in samples)
    metrics = {**plan.metrics, "examples": float(len(samples)), "trained_tokens": float(tokens)}
    return StepPlan(updates=updates, trained_tokens=tokens, metrics=metrics)


def _parts(samples: Sequence[TrainSample], count: int) -> list[list[TrainSample]]:
    # At most so many parts; a preference is never parted
    indices = units(samples)
    parts = np.array_split(np.arange(len(indices)), min(count, len(indices))) if indices else []
    return [[samples[i] for unit in part for i in indices[unit]] for part in parts]


def _weight(samples: Sequence[TrainSample]) -> float:
    return math.fsum(sample.scale * sample.trained_tokens for sample in samples)


def _scaled(sample: TrainSample, settings: TrainerSettings) -> TrainSample:
    if settings.loss_normalizer != "sequence":
        return sample
    return structs.replace(sample, scale=1 / sample.trained_tokens)


def _dealt(samples: Sequence[TrainSample], ranks: int, *, share: bool) -> list[list[TrainSample]]:
    parts = [[samples[i] for i in part] for part in units(samples)]
    if not share:
        return _dealt_whole(parts, ranks, share=False)
    groups: dict[bytes, list[TrainSample]] = {}
    for part in parts:
        groups.setdefault(part[0].prompt_key, []).extend(part)
    dealings = [_dealt_whole(items, ranks, share=True) for items in (parts, list(groups.values()))]
    return min(dealings, key=lambda shards: max(computed_tokens(shard, share=True) for shard in shards))


def _dealt_whole(items: Sequence[Sequence[TrainSample]], ranks: int, *, share: bool) -> list[list[TrainSample]]:
    sizes = [computed_tokens(item, share=share) for item in items]
    return [[sample for i in indices for sample in items[i]] for indices in balanced(sizes, ranks)]


def balanced(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Deal items to ranks so that their sums are about equal: the indices of each rank's items, in order."""
    sums = [0] * ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        rank = min(range(ranks), key=sums.__getitem__)
        sums[rank] += sizes[index]
        dealt[rank].append(index)
    return [sorted(indices) for indices in dealt]
