"""Groups, samples and tasks as what pages show of them. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas import ExperienceGroup
from schemas.experience import Sample, SampledWith
from trinity_bus.chat.formats import Format
from trinity_bus.console.index.group_rows import Texts
from trinity_bus.console.index.terms import GroupRow, SamplePlace, TaskEvent, TaskTimeline
from trinity_bus.console.web.advantage import Comparison
from trinity_bus.console.web.sample_view import TokenView, TurnView, token_views, turns

_METRICS: Final = 100  # Of one run
# Of events of an attempt, in the tree; of others 1
_DEPTHS: Final = {"sent": 0, "dispatched": 1, "finished": 2, "cancelled": 2, "experience": 2, "begun": 3}


@dataclass(frozen=True, slots=True)
class RunView:
    place: SamplePlace
    run_id: int
    part: int  # Of samples that are one run: which, from 1; 0 where there is but one
    reward: float | None
    advantage: float | None
    response_tokens: int
    logprob: float | None
    finish_reason: str
    metrics: list[tuple[str, float]]  # The first ones
    turns: list[TurnView]


@dataclass(frozen=True, slots=True)
class TreeRow:
    """An event on a task's way, below that which it follows from."""

    depth: int
    event: TaskEvent
    group: GroupRow | None = None  # That an attempt has yielded here


def group_runs(
    group: ExperienceGroup,
    places: Sequence[SamplePlace],
    comparison: Comparison,
    *,
    texts: Texts | None,
    most: int,
    read: Format | None = None,
) -> tuple[str, list[RunView]]:
    """Return the prompt of a group's first sample, and its runs."""
    samples = list(group.samples())
    ids = group.run_ids.tolist()
    prompt = samples[0].tokens[: samples[0].prompt_length].tolist()
    told = texts([prompt])[0] if texts is not None else " ".join(map(str, prompt))
    runs = []
    for number, sample in enumerate(samples[:most]):
        metrics = group.metrics[number] if number < len(group.metrics) else {}
        named = [(name, value) for name, value in sorted(metrics.items()) if name != "reward"]
        runs.append(
            RunView(
                place=places[number],
                run_id=sample.run_id,
                part=ids[:number].count(sample.run_id) + 1 if ids.count(sample.run_id) > 1 else 0,
                reward=sample.reward if math.isfinite(sample.reward) else None,
                advantage=comparison.of(number),
                response_tokens=len(sample.logprobs),
                logprob=float(sample.logprobs[sample.mask].mean()) if sample.mask.any() else None,
                finish_reason=group.finish_reasons[number] if number < len(group.finish_reasons) else "",
                metrics=named[:_METRICS],
                turns=turns_of(sample, texts, read),
            )
        )
    return told, runs


def sample_places(parts: Sequence[GroupRow]) -> list[SamplePlace]:
    """Return the places of the samples of a group, in the order in which its parts are joined."""
    return [SamplePlace(part.partition, part.offset, number) for part in parts for number in range(part.samples)]


def mean_of_runs(group: ExperienceGroup) -> tuple[int, float | None, float | None]:
    """Return how many runs there are, and mean and deviation of their rewards: a run's is the mean of its samples'."""
    rewards: dict[int, list[float]] = {run: [] for run in group.run_ids.tolist()}
    for run, reward in zip(group.run_ids.tolist(), group.rewards.tolist(), strict=True):
        if math.isfinite(reward):
            rewards[run].append(reward)
    means = [fmean(each) for each in rewards.values() if each]
    return len(rewards), *((fmean(means), pstdev(means)) if means else (None, None))


def sample_json(group: ExperienceGroup, number: int, texts: Texts | None) -> dict[str, Any]:
    sample = list(group.samples())[number]
    prompt, response = sample.tokens[: sample.prompt_length].tolist(), sample.tokens[sample.prompt_length :].tolist()
    said = [None, None] if texts is None else texts([prompt, response])
    return {
        "task_id": group.task_id,
        "attempt": group.attempt,
        "batch_id": group.batch_id,
        "workflow": group.workflow,
        "model": group.model,
        "explorer": group.explorer,
        "run_id": sample.run_id,
        "reward": sample.reward if math.isfinite(sample.reward) else None,
        "metrics": group.metrics[number] if number < len(group.metrics) else {},
        "finish_reason": group.finish_reasons[number] if number < len(group.finish_reasons) else None,
        "prompt": said[0],
        "response": said[1],
        "prompt_token_ids": prompt,
        "response_token_ids": response,
        "logprobs": sample.logprobs.tolist(),
        "teacher_logprobs": None if sample.teacher_logprobs is None else _numbers(sample.teacher_logprobs.tolist()),
        "mask": sample.mask.tolist(),
        "versions": [[start, version] for owner, start, version in group.versions.tolist() if owner == number],
        "turn_starts": None if sample.turn_starts is None else sample.turn_starts.tolist(),
        "turn_rewards": None if sample.turn_rewards is None else _numbers(sample.turn_rewards.tolist()),
        "sampling": None if sample.sampling is None else sample.sampling._asdict(),
    }


def _numbers(values: list[float]) -> list[float | None]:
    # Numbers as JSON has them
    return [value if math.isfinite(value) else None for value in values]


def way_of_drawing(sampling: SampledWith | None) -> str:
    """Return how a sample's tokens were drawn; empty where nobody knows."""
    if sampling is None:
        return ""
    if math.isnan(sampling.top_p):
        return f"temperature {sampling.temperature:g}, and something that had a say too"
    limits = [
        f"top-p {sampling.top_p:g}" if sampling.top_p != 1 else "",
        f"top-k {sampling.top_k:g}" if sampling.top_k else "",
        f"min-p {sampling.min_p:g}" if sampling.min_p else "",
    ]
    return ", ".join(part for part in (f"temperature {sampling.temperature:g}", *limits) if part)


def task_tree(task: TaskTimeline) -> list[TreeRow]:
    """Return a task's way as a tree: the task, each attempt, what came of that, and the steps that trained on it.

    Attempts may overlap; each is told whole, in the order in which they began.
    """
    begun = {one.attempt: at for at, one in reversed(list(enumerate(task.events))) if one.attempt is not None}
    groups = {(one.partition, one.offset): one for one in task.groups}

    def order(at: int, event: TaskEvent) -> tuple[int, int, int]:
        first = event.kind != "sent"
        return (first, at if event.attempt is None else begun[event.attempt], at)

    rows = sorted(enumerate(task.events), key=lambda one: order(*one))
    return [
        TreeRow(
            _DEPTHS.get(event.kind, 1),
            event,
            groups.get((event.place.partition, event.place.offset)) if event.kind == "experience" else None,
        )
        for _, event in rows
    ]


def sample_tokens(
    group: ExperienceGroup,
    number: int,
    texts: Texts | None,
    *,
    first: int = 0,
    others: Sequence[float] | NDArray[np.floating[Any]] | None = None,
    other: str = "teacher",
    entropies: Sequence[float] | NDArray[np.floating[Any]] | None = None,
) -> list[TokenView]:
    """Return a page of a sample's tokens; the rest as :func:`~.tokens.token_views` has it."""
    sample = list(group.samples())[number]
    return token_views(
        sample.tokens,
        sample.prompt_length,
        logprobs=sample.logprobs,
        mask=sample.mask,
        versions=[(start, version) for owner, start, version in group.versions.tolist() if owner == number],
        turn_starts=[] if sample.turn_starts is None else sample.turn_starts.tolist(),
        others=others,
        other=other,
        entropies=entropies,
        texts=texts,
        first=first,
    )


def turns_of(sample: Sample, texts: Texts | None, read: Format | None = None) -> list[TurnView]:
    rewards = [] if sample.turn_rewards is None else _numbers(sample.turn_rewards.tolist())
    return turns(
        sample.tokens[sample.prompt_length :].tolist(),
        sample.mask.tolist(),
        texts,
        turn_starts=[] if sample.turn_starts is None else sample.turn_starts.tolist(),
        turn_rewards=rewards,
        read=read,
    )
