"""A response as turns: what the model said, and what it was told in between. Pure.

A sample's mask tells the one from the other; what the model said of one turn may follow that of another directly, where
``turn_starts`` says that a new one begins.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from typing import Final

from trinity_bus.chat.formats import Format, Read
from trinity_bus.console.index.group_rows import Texts

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
