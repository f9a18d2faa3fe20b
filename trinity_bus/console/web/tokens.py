"""A sample's tokens as a page shows them: each with a shade for its log-probability, who drew it, whether it counts.

::

    shade 0   p > 0.9, as good as certain        shade 6   p > 0.001
    shade 1   p > 0.7      ...                   shade 7   the model hardly ever says so

Token ids are shown with their text where a tokenizer is at hand, and alone where there is none.
"""

import math
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
