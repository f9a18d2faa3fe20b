"""What the store keeps of a group of experiences: its own row, one of each sample, and texts.

Tokens stay on the log. What is kept of a text is its beginning, for lists, and which words are in it, for searches; of
one that is longer than ``search_tokens`` those of its first and of its last half of them: answers stand at the end.

Tokenizers of most models are byte-level: each token is some bytes, and a text is those of its tokens, one after the
other. A table of them does that in a third of the time that the tokenizer takes. Tokens that there are not have no
text.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas import ExperienceGroup
from schemas.record import MAX_COUNT
from trinity_bus.bus import Received
from trinity_bus.chat.encoding import encoder_of, load_tokenizer
from trinity_bus.chat.formats import format_of
from trinity_bus.console.index.rows import Row
from trinity_bus.console.index.schema import PROMPT, SAMPLE_BITS, sample_number
from trinity_bus.console.index.terms import HEAD_CHARS
from trinity_bus.errors import ConfigError
from trinity_bus.hub import model_folder

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
    # Their mean, least and greatest; a handful, for which numpy would take longer
    return (_number(sum(rewards) / len(rewards)), min(rewards), max(rewards)) if rewards else (None,) * 3


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


class ModelTexts:
    """Text of a model's tokens, by its tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        # Tokens that stand for no text: what templates are made of
        self.special = encoder_of(tokenizer).ends
        # Finds the tools that the model calls in the text of a turn, as its template has it write them
        self.read = format_of(str(getattr(tokenizer, "chat_template", None) or ""))
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        is_byte_level = backend is not None and type(backend.decoder).__name__ == "ByteLevel"
        self._texts = byte_level_texts(backend.get_vocab()) if is_byte_level else _asking(tokenizer)

    def __call__(self, tokens: Sequence[Tokens]) -> Sequence[str]:
        """Return their text, special tokens too."""
        return self._texts(tokens)


def load_texts(model_path: str | None) -> ModelTexts | str:
    """Return what makes text of tokens; or why nothing does, in one line."""
    if model_path is None:
        return "samples have no text: set console.model_path to the model's folder, for its tokenizer"
    try:
        folder = model_folder(model_path, weights=False)
        if not folder.is_dir():
            return f"samples have no text: console.model_path = {model_path!r} is no folder"
        return ModelTexts(load_tokenizer(str(folder)))
    except ConfigError as error:
        return f"samples have no text: {error}"
    except ModuleNotFoundError:
        return "samples have no text: the tokenizer needs transformers, pip install 'trinity-bus[console]'"


def _asking(tokenizer: Any) -> Texts:
    # What asks the tokenizer. Some leave out what they do not know, others fail.
    words = len(tokenizer)

    def texts(tokens: Sequence[Tokens]) -> Sequence[str]:
        known = [[token for token in np.asarray(each).tolist() if 0 <= token < words] for each in tokens]
        found: Sequence[str] = tokenizer.batch_decode(known)
        return found

    return texts


def byte_level_texts(vocabulary: dict[str, int]) -> Texts:
    """Return what makes text by a table."""
    # Nothing at both ends, for numbers beyond.
    table = np.full(max(vocabulary.values(), default=0) + 3, b"", object)
    for token, number in vocabulary.items():
        # Tokens that were added to it by hand are not written so.
        known = all(letter in _BYTES for letter in token)
        table[number + 1] = bytes(_BYTES[letter] for letter in token) if known else token.encode()

    def texts(tokens: Sequence[Tokens]) -> Sequence[str]:
        # All at once: to look them up text by text would take longer than the lookup.
        numbers = np.concatenate([*tokens, []], dtype=np.int64, casting="unsafe")
        pieces = table.take(numbers + 1, mode="clip").tolist()
        ends = accumulate(map(len, tokens), initial=0)
        return [b"".join(pieces[begin:end]).decode("utf-8", "replace") for begin, end in pairwise(ends)]

    return texts


def _letters_of_bytes() -> dict[str, int]:
    # The byte that each letter stands for, as GPT-2's encoder has it: what can be seen for itself
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = count(0x100)
    return {chr(byte if byte in seen else next(others)): byte for byte in range(256)}


_BYTES: Final = _letters_of_bytes()
