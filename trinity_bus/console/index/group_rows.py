"""What the store keeps of a group of experiences: its own row, one of each sample, and texts. Pure.

Tokens stay on the log. What is kept of a text is its beginning, for lists, and which words are in it, for searches; of
one that is longer than ``search_tokens`` those of its first and of its last half of them: answers stand at the end.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas import ExperienceGroup
from schemas.record import MAX_COUNT
from trinity_bus.bus import Received
from trinity_bus.console.index.answers import HEAD_CHARS
from trinity_bus.console.index.rows import Row
from trinity_bus.console.index.schema import PROMPT, SAMPLE_BITS, sample_number

type Tokens = Sequence[int] | NDArray[np.int32]
# A tokenizer's: token ids to text, many at a time. Of what is none of its tokens it makes none.
type Texts = Callable[[Sequence[Tokens]], Sequence[str]]

CHUNK_TOKENS: Final = 1 << 18  # Looked at at once, about: as Python's numbers they take ten times their bytes


def searched(tokens: NDArray[np.int32], most: int) -> NDArray[np.int32]:
    """Return the tokens that text is searched in: all, or the first and the last half of ``most``."""
    return tokens if len(tokens) <= most else np.concatenate([tokens[: most // 2], tokens[-(most - most // 2) :]])


def told(group: ExperienceGroup, most: int) -> Iterator[NDArray[np.int32]]:
    """Return the tokens to be made text of: the first sample's prompt, then the response of each."""
    tokens, begin = group.tokens, 0
    for length, prompt in zip(group.lengths.tolist(), group.prompt_lengths.tolist(), strict=True):
        if begin == 0:
            yield searched(tokens[:prompt], most)
        yield searched(tokens[begin + prompt : begin + length], most)
        begin += length


def texts_of(groups: Sequence[ExperienceGroup], texts: Texts, most: int) -> list[list[str]]:
    """Return the texts of each group, in the order of ``told``; some ``CHUNK_TOKENS`` of them at a time."""
    found: list[str] = []
    waiting: list[Tokens] = []
    size = 0
    for tokens in (tokens for group in groups for tokens in told(group, most)):
        waiting.append(tokens)
        size += len(tokens)
        if size >= CHUNK_TOKENS:
            found += texts(waiting)
            waiting, size = [], 0
    found += texts(waiting) if waiting else ()
    ends = itertools.accumulate(len(group) + 1 for group in groups)
    return [found[end - len(group) - 1 : end] for group, end in zip(groups, ends, strict=True)]


def group_rows(
    number: int, received: Received[Any], group: ExperienceGroup, texts: Sequence[str], logprobs: Sequence[float | None]
) -> dict[str, list[Row]]:
    """Return the rows of a group by tables. ``texts`` are of what ``told`` gives; none where there is no tokenizer."""
    samples = _samples(group, number, logprobs)
    ids = [number << SAMPLE_BITS | PROMPT, *(row[0] for row in samples)]
    numbered = list(zip(ids, texts, strict=True)) if texts else []
    # In the order of their numbers, in which they are written much the fastest.
    return {
        "groups": [_group(number, received, group)],
        "samples": samples[::-1],
        "texts": [(key, text[:HEAD_CHARS]) for key, text in reversed(numbered)],
        "words": numbered[::-1],
    }


def _group(number: int, received: Received[Any], group: ExperienceGroup) -> Row:
    versions = group.versions[:, 2].tolist()
    trace = received.traceparent
    return (
        number,
        received.partition,
        received.offset,
        group.task_id,
        min(group.attempt, MAX_COUNT),
        group.batch_id,
        group.batch_type,
        group.workflow,
        group.model,
        group.explorer,
        len(group),
        *_spread([reward for reward in group.rewards.tolist() if not math.isnan(reward)]),
        *_range_of_runs(group),
        min(versions, default=-1),
        max(versions, default=-1),
        int(group.prompt_lengths[0]),
        len(group.logprobs),
        None if trace is None or len(trace) != 55 else trace[3:35],
    )


def _spread(rewards: list[float]) -> tuple[float | None, ...]:
    # Their mean, least, greatest and standard deviation; a handful, for which numpy would take longer
    if not rewards:
        return (None,) * 4
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) * (reward - mean) for reward in rewards) / len(rewards)
    return _number(mean), min(rewards), max(rewards), None if math.isnan(variance) else math.sqrt(variance)


def _range_of_runs(group: ExperienceGroup) -> tuple[float | None, float | None]:
    # The least and the greatest mean reward of a run; turns and branches are samples of one
    rewards: dict[int, list[float]] = {}
    for run, reward in zip(group.run_ids.tolist(), group.rewards.tolist(), strict=True):
        if not math.isnan(reward):
            rewards.setdefault(run, []).append(reward)
    means = [sum(each) / len(each) for each in rewards.values()]
    return _number(min(means, default=math.nan)), _number(max(means, default=math.nan))


def _samples(group: ExperienceGroup, number: int, logprobs: Sequence[float | None]) -> list[Row]:
    drawn: list[tuple[int, int]] = [(-1, -1)] * len(group)
    for owner, _, version in group.versions.tolist():
        low, high = drawn[owner]
        drawn[owner] = version if low < 0 else min(low, version), max(high, version)
    reasons = [reason[:HEAD_CHARS] for reason in group.finish_reasons] or [""] * len(group)
    columns = (group.run_ids, group.rewards, group.prompt_lengths, group.lengths)
    told_of = zip(*(column.tolist() for column in columns), drawn, logprobs, reasons, strict=True)
    first = sample_number(number, 0)
    return [
        (first - i, run_id, None if math.isnan(reward) else reward, *versions, prompt, length - prompt, logprob, reason)
        for i, (run_id, reward, prompt, length, versions, logprob, reason) in enumerate(told_of)
    ]


def logprobs_of(groups: Sequence[ExperienceGroup]) -> Iterator[list[float | None]]:
    """Return for each group the mean log-probability of each sample's own tokens; many are computed at once."""
    waiting: list[ExperienceGroup] = []
    size = 0
    for group in groups:
        waiting.append(group)
        size += len(group.logprobs)
        if size >= CHUNK_TOKENS:
            yield from _logprobs(waiting)
            waiting, size = [], 0
    yield from _logprobs(waiting) if waiting else ()


def _logprobs(groups: Sequence[ExperienceGroup]) -> Iterator[list[float | None]]:
    responses = np.concatenate([group.lengths - group.prompt_lengths for group in groups])
    begins = np.cumsum(responses) - responses
    # One behind the last, where an empty response at the end begins.
    mask = np.concatenate([*(group.mask for group in groups), np.zeros(1, np.bool_)])
    logprobs = np.concatenate([*(group.logprobs for group in groups), np.zeros(1, np.float32)])
    with np.errstate(invalid="ignore"):
        sums = np.add.reduceat(np.where(mask, logprobs, 0), begins, dtype=np.float64)
        drawn = np.where(responses == 0, 0, np.add.reduceat(mask, begins, dtype=np.int64))
        means = (sums / np.maximum(drawn, 1)).tolist()
    found = iter([_number(mean) if n else None for mean, n in zip(means, drawn.tolist(), strict=True)])
    return (list(itertools.islice(found, len(group))) for group in groups)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
