"""A sample as pages show it: its tokens, each with a shade for its log-probability, and its response as turns.

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
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinity_bus.chat.formats import Format, Read
from trinity_bus.console.index.group_rows import Texts

PAGE_TOKENS: Final = 4_000  # Tokens on one page
_SHADES: Final = tuple(-math.log(p) for p in (0.9, 0.7, 0.5, 0.3, 0.1, 0.01, 0.001))
_ENTROPIES: Final = (0.01, 0.1, 0.3, 0.7, 1.5, 2.5, 4.0)
_GAPS: Final = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0)


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
    tokens: Sequence[int] | NDArray[np.int32],
    prompt_length: int,
    *,
    logprobs: Sequence[float] | NDArray[np.float32],
    mask: Sequence[bool] | NDArray[np.bool_],
    versions: Sequence[tuple[int, int]] = (),
    turn_starts: Sequence[int] = (),
    others: Sequence[float] | NDArray[np.floating[Any]] | None = None,
    other: str = "teacher",
    entropies: Sequence[float] | NDArray[np.floating[Any]] | None = None,
    texts: Texts | None = None,
    first: int = 0,
) -> list[TokenView]:
    """Return the tokens of one page: ``PAGE_TOKENS`` from ``first`` on.

    ``tokens`` are the whole sample's, prompt first; ``others`` are log-probabilities under another policy. These,
    entropies (in nats), ``logprobs`` and ``mask`` have a value for each response token; ``versions`` are (first
    response token, version), ascending.
    """
    page = [int(token) for token in tokens[first : first + PAGE_TOKENS]]
    said = [""] * len(page) if texts is None else texts([[token] for token in page])
    turns = {start: number for number, start in enumerate(turn_starts)}
    views = []
    for place, token_id, text in zip(count(first), page, said, strict=False):
        classes, told, response = ["t"], [f"token {place}, id {token_id}"], place - prompt_length
        if response < 0:
            views.append(TokenView(text, token_id, "t prompt", f"{told[0]}, prompt"))
            continue
        # A token that the model did not draw has no log-probability, whatever stands in its place.
        if mask[response]:
            logprob = float(logprobs[response])
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
        if (turn := turns.get(response)) is not None:
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


def turns(
    response: Sequence[int],
    mask: Sequence[bool],
    texts: Texts | None,
    *,
    turn_starts: Sequence[int] = (),
    turn_rewards: Sequence[float | None] = (),
    read: Format | None = None,
) -> list[TurnView]:
    """Return a response as turns. Without ``texts`` ids are shown; without ``read`` calls of tools are text."""
    starts = set(turn_starts)
    bounds = [i for i in range(1, len(response)) if mask[i] != mask[i - 1] or i in starts]
    bounds = [0, *bounds[: MAX_TURNS - 1], len(response)]
    numbers = {start: number for number, start in enumerate(turn_starts)}
    begins = [begin for begin, end in pairwise(bounds) if end > begin]
    pieces = [[int(token) for token in response[begin:end]] for begin, end in pairwise(bounds) if end > begin]
    said = [" ".join(map(str, piece)) for piece in pieces] if texts is None else texts(pieces)
    found: list[TurnView] = []
    for begin, text in zip(begins, said, strict=True):
        if not mask[begin]:
            called = [call.name for call in found[-1].calls] if found else []
            found.append(TurnView(f"told: result of {', '.join(called)}" if called else "told", text))
            continue
        reward = turn_rewards[numbers[begin]] if numbers.get(begin, len(turn_rewards)) < len(turn_rewards) else None
        parsed = Read(text) if read is None else read(text)
        calls = [ToolUse(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in parsed.calls]
        found.append(TurnView("model", text, reward, calls, parsed.flaws))
    return found


def prompt_pieces(prompt: Sequence[int], texts: Texts | None, special: Collection[int]) -> list[PromptPiece]:
    """Return a prompt as it was read: what the template has put there told from the rest."""
    parts = [(marked, list(part)) for marked, part in islice(groupby(prompt, special.__contains__), MAX_PIECES)]
    if rest := list(prompt[sum(len(part) for _, part in parts) :]):
        parts.append((False, rest))
    ids = [part for _, part in parts]
    told = [" ".join(map(str, part)) for part in ids] if texts is None else texts(ids)
    return [PromptPiece(text, marked) for (marked, _), text in zip(parts, told, strict=True)]
