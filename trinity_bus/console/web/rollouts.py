"""Groups, samples and tasks as pages show them: tokens, each with a shade for its log-probability, turns, ways. Pure.

::

    shade 0   p > 0.9, as good as certain        shade 6   p > 0.001
    shade 1   p > 0.7      ...                   shade 7   the model hardly ever says so

Token ids are shown with their text where a tokenizer is at hand, and alone where there is none.

The mask tells what the model said from what it was told in between; what the model said of one turn may follow that of
another directly, where ``turn_starts`` says that a new one begins.
"""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count, groupby, islice, pairwise
from statistics import fmean, pstdev
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas import ExperienceGroup
from schemas.experience import Sample, SampledWith
from trinity_bus.chat.formats import Format, Read
from trinity_bus.console.index.group_rows import Texts
from trinity_bus.console.index.terms import GroupRow, SamplePlace, TaskEvent, TaskTimeline
from trinity_bus.console.web.advantage import Comparison

PAGE_TOKENS: Final = 4_000  # Tokens on one page
_SHADES: Final = tuple(-math.log(p) for p in (0.9, 0.7, 0.5, 0.3, 0.1, 0.01, 0.001))
_ENTROPIES: Final = (0.01, 0.1, 0.3, 0.7, 1.5, 2.5, 4.0)
_GAPS: Final = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0)

type Numbers = NDArray[np.floating[Any]]


class TokenView(NamedTuple):
    text: str  # Empty where there is no tokenizer
    token_id: int
    classes: str
    title: str


def shade(value: float, bounds: Sequence[float]) -> int:
    """Return how many of seven bounds a value is not below; all of them, where it is no number.

    >>> shade(0.0, _GAPS), shade(0.3, _GAPS), shade(9.0, _GAPS), shade(float("nan"), _SHADES)
    (0, 3, 7, 7)
    """
    return next((number for number, bound in enumerate(bounds) if value < bound), len(bounds))


def token_views(
    group: ExperienceGroup,
    number: int,
    *,
    others: Numbers | None = None,
    other: str = "teacher",
    entropies: Numbers | None = None,
    texts: Texts | None = None,
    first: int = 0,
) -> list[TokenView]:
    """Return the tokens of one page of a sample: ``PAGE_TOKENS`` from ``first`` on.

    ``others`` are log-probabilities under another policy. These and entropies (in nats) have a value for each response
    token.
    """
    sample = list(group.samples())[number]
    mask, versions = sample.mask.tolist(), _versions(group, number)
    page = sample.tokens[first : first + PAGE_TOKENS].tolist()
    said = [""] * len(page) if texts is None else texts([[token] for token in page])
    begins = {start: number for number, start in enumerate(_turn_starts(sample))}
    views = []
    for place, token_id, text in zip(count(first), page, said, strict=False):
        classes, told, response = ["t"], [f"token {place}, id {token_id}"], place - sample.prompt_length
        if response < 0:
            views.append(TokenView(text, token_id, "t prompt", f"{told[0]}, prompt"))
            continue
        # A token that the model did not draw has no log-probability, whatever stands in its place.
        if mask[response]:
            logprob = float(sample.logprobs[response])
            classes.append(f"lp{shade(-logprob, _SHADES)}")
            told += [f"log-probability {logprob:.4f} (p = {math.exp(min(0.0, logprob)):.3g})", "trained on"]
        else:
            logprob = math.nan
            classes.append("off")
            told.append("masked: not the model's own")
        version = next((drawn_by for start, drawn_by in reversed(versions) if start <= response), None)
        if version is not None:
            classes.append(f"v{version % 6}")
            told.append(f"drawn by version {version}")
        gap = math.nan if others is None else float(others[response]) - logprob
        if not math.isnan(gap):
            classes.append(f"gap{shade(abs(gap), _GAPS)}")
            told.append(f"{other} {gap:+.3f}")
        if entropies is not None:
            entropy = float(entropies[response])
            classes.append(f"en{shade(entropy, _ENTROPIES)}")
            told.append(f"entropy {entropy:.3f}")
        if (turn := begins.get(response)) is not None:
            classes += ["turn"] * (turn > 0)
            told.append(f"turn {turn + 1} begins")
        views.append(TokenView(text, token_id, " ".join(classes), ", ".join(told)))
    return views


MAX_TURNS: Final = 200  # On one page, of one sample; the rest is one piece


MAX_PIECES: Final = 400  # Of one prompt; the rest is one piece


@dataclass(frozen=True, slots=True)
class PromptPiece:
    text: str
    special: bool  # Whether these are tokens that no text makes: the template's


@dataclass(frozen=True, slots=True)
class ToolUse:
    name: str
    arguments: str  # As JSON


@dataclass(frozen=True, slots=True)
class TurnView:
    """A piece of a response that one side has said."""

    # ``model``, or ``told`` to it: by a user, by the template, or as the result of the tools that it has called
    who: str
    text: str
    reward: float | None = None  # That the workflow gave for this turn alone
    calls: Sequence[ToolUse] = ()  # Of tools, that the model has written here
    flaws: Sequence[str] = ()  # Why what looks like a call is none


def turns(sample: Sample, texts: Texts | None, read: Format | None = None) -> list[TurnView]:
    """Return a response as turns. Without ``texts`` ids are shown; without ``read`` calls of tools are text."""
    response, mask = sample.tokens[sample.prompt_length :].tolist(), sample.mask.tolist()
    rewards = [] if sample.turn_rewards is None else _numbers(sample.turn_rewards)
    numbers = {start: number for number, start in enumerate(_turn_starts(sample))}
    bounds = [i for i in range(1, len(response)) if mask[i] != mask[i - 1] or i in numbers]
    bounds = [0, *bounds[: MAX_TURNS - 1], len(response)]
    begins = [begin for begin, end in pairwise(bounds) if end > begin]
    pieces = [response[begin:end] for begin, end in pairwise(bounds) if end > begin]
    said = _texts(pieces, texts)
    found: list[TurnView] = []
    for begin, text in zip(begins, said, strict=True):
        if not mask[begin]:
            called = [call.name for call in found[-1].calls] if found else []
            found.append(TurnView(f"told: result of {', '.join(called)}" if called else "told", text))
            continue
        reward = rewards[numbers[begin]] if numbers.get(begin, len(rewards)) < len(rewards) else None
        parsed = Read(text) if read is None else read(text)
        calls = [ToolUse(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in parsed.calls]
        found.append(TurnView("model", text, reward, calls, parsed.flaws))
    return found


def prompt_pieces(prompt: Sequence[int], texts: Texts | None, special: Collection[int]) -> list[PromptPiece]:
    """Return a prompt as it was read: what the template has put there told from the rest."""
    parts = [(marked, list(part)) for marked, part in islice(groupby(prompt, special.__contains__), MAX_PIECES)]
    if rest := list(prompt[sum(len(part) for _, part in parts) :]):
        parts.append((False, rest))
    told = _texts([part for _, part in parts], texts)
    return [PromptPiece(text, marked) for (marked, _), text in zip(parts, told, strict=True)]


def _texts(pieces: Sequence[list[int]], texts: Texts | None) -> Sequence[str]:
    return [" ".join(map(str, piece)) for piece in pieces] if texts is None else texts(pieces)


def _numbers(values: Numbers) -> list[float | None]:
    # Numbers as JSON has them
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _versions(group: ExperienceGroup, number: int) -> list[tuple[int, int]]:
    # (first response token, version that drew from there on) of a sample, ascending
    return [(start, version) for owner, start, version in group.versions.tolist() if owner == number]


def _turn_starts(sample: Sample) -> list[int]:
    return [] if sample.turn_starts is None else sample.turn_starts.tolist()


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
                turns=turns(sample, texts, read),
            )
        )
    return _texts([prompt], texts)[0], runs


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
        "teacher_logprobs": None if sample.teacher_logprobs is None else _numbers(sample.teacher_logprobs),
        "mask": sample.mask.tolist(),
        "versions": _versions(group, number),
        "turn_starts": None if sample.turn_starts is None else sample.turn_starts.tolist(),
        "turn_rewards": None if sample.turn_rewards is None else _numbers(sample.turn_rewards),
        "sampling": None if sample.sampling is None else sample.sampling._asdict(),
    }


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
