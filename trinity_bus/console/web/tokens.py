"""A sample's tokens as a page shows them: each with a shade for its log-probability, who drew it, whether it counts.

::

    shade 0   p > 0.9, as good as certain        shade 6   p > 0.001
    shade 1   p > 0.7      ...                   shade 7   the model hardly ever says so

Token ids are shown with their text where a tokenizer is at hand, and alone where there is none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PAGE_TOKENS: Final = 4_000  # Tokens on one page
_SHADES: Final = tuple(-math.log(p) for p in (0.9, 0.7, 0.5, 0.3, 0.1, 0.01, 0.001))
_ENTROPIES: Final = (0.01, 0.1, 0.3, 0.7, 1.5, 2.5, 4.0)
_GAPS: Final = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class TokenView:
    place: int  # In the sample, from 0
    token_id: int
    text: str  # Empty where there is no tokenizer
    is_prompt: bool
    logprob: float | None = None
    counts: bool = False  # Whether it is trained on
    version: int | None = None  # That drew it
    gap: float | None = None  # Log-probability under another policy less under the one that drew it
    other: str = ""  # Which other
    turn: int | None = None  # The turn that begins here
    entropy: float | None = None  # Of the distribution that it is from, in nats, by the trainer

    @property
    def classes(self) -> str:
        if self.is_prompt:
            return "t prompt"
        parts = ["t", "" if self.counts else "off"]
        if self.logprob is not None:
            parts.append(f"lp{shade(-self.logprob, _SHADES)}")
        if self.gap is not None:
            parts.append(f"gap{shade(abs(self.gap), _GAPS)}")
        if self.entropy is not None:
            parts.append(f"en{shade(self.entropy, _ENTROPIES)}")
        if self.version is not None:
            parts.append(f"v{self.version % 6}")
        if self.turn:
            parts.append("turn")
        return " ".join(part for part in parts if part)

    @property
    def told(self) -> str:
        parts = [f"token {self.place}, id {self.token_id}"]
        if self.is_prompt:
            parts.append("prompt")
        if self.logprob is not None:
            parts.append(f"log-probability {self.logprob:.4f} (p = {math.exp(min(0.0, self.logprob)):.3g})")
        if not self.is_prompt:
            parts.append("trained on" if self.counts else "masked: not the model's own")
        if self.version is not None:
            parts.append(f"drawn by version {self.version}")
        if self.gap is not None:
            parts.append(f"{self.other} {self.gap:+.3f}")
        if self.entropy is not None:
            parts.append(f"entropy {self.entropy:.3f}")
        if self.turn is not None:
            parts.append(f"turn {self.turn + 1} begins")
        return ", ".join(parts)


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
    texts: Sequence[str] | None = None,
    first: int = 0,
    most: int = PAGE_TOKENS,
) -> list[TokenView]:
    """Return the tokens of one page: ``most`` from ``first`` on.

    ``tokens`` are the whole sample's, prompt first; ``texts`` those of the page; the others have a value for each
    response token, but for ``versions`` ((first response token, version), ascending) and ``turn_starts``. Entropies
    are in nats.
    """
    turns = {start: number for number, start in enumerate(turn_starts)}
    views = []
    for place in range(first, min(len(tokens), first + most)):
        token_id, response = int(tokens[place]), place - prompt_length
        text = "" if texts is None else texts[place - first]
        if response < 0:
            views.append(TokenView(place, token_id, text, is_prompt=True))
            continue
        logprob = float(logprobs[response])
        apart = math.nan if others is None or not mask[response] else float(others[response]) - logprob
        views.append(
            TokenView(
                place,
                token_id,
                text,
                is_prompt=False,
                # A token that the model did not draw has none, whatever stands in its place.
                logprob=logprob if mask[response] else None,
                counts=bool(mask[response]),
                version=next((drawn_by for start, drawn_by in reversed(versions) if start <= response), None),
                gap=None if math.isnan(apart) else apart,
                other=other,
                turn=turns.get(response),
                entropy=None if entropies is None else float(entropies[response]),
            )
        )
    return views
