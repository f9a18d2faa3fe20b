"""How each sample was drawn, said of it where its workflow does not. Pure.

A trainer computes log-probabilities at the temperature at which a sample was drawn, so every sample has to say it. What
the engine was asked is known here; which sample came of which question is not, where a workflow asked in several ways::

    asked in one way         --> every sample that does not say it was drawn so
    asked in several ways    --> each sample has to say it (``Rollout.sampling``), or nobody knows: an error
    never asked              --> nothing was drawn: nothing is said

No trainer can repeat a distribution that penalties, biases or constraints have altered (``Sampling.altered_by``). What
was drawn from one is carried, and rewarded, and its mask is all False: it is not trained on. A metric counts it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schemas.experience import Rollout
from schemas.sampling import Sampling
from trinity_bus.errors import TrinityError


class UnknownSamplingError(TrinityError, ValueError):
    """A workflow has asked the engine in several ways and does not say which sample was drawn how."""


def note_sampling(asked: list[Sampling], sampling: Sampling) -> None:
    """Add a way of drawing to those that are known, unless it draws as one of them does."""
    if any(known is sampling for known in asked):
        return
    if not asked or all(_distribution(known) != _distribution(sampling) for known in asked):
        asked.append(sampling)


def stamped(rollouts: Sequence[Rollout], asked: Sequence[Sampling]) -> tuple[Sequence[Rollout], Sampling | None]:
    """Return the rollouts, and how those were drawn that do not say it.

    Args:
        rollouts: What a workflow gave.
        asked: How it has asked the engine to draw, each way once.

    Raises:
        UnknownSamplingError: One does not say it, and there are several ways.
        AttributeError: One is no rollout.
    """
    ways = [one.sampling for one in rollouts]
    rest = asked[0] if asked and any(way is None for way in ways) else None
    if rest is not None and len(asked) > 1:
        told = ", ".join(str(dict(zip(_DISTRIBUTION, _distribution(one), strict=True))) for one in asked)
        raise UnknownSamplingError(
            f"the engine was asked to draw in {len(asked)} ways ({told}): say of each rollout which it was, as in "
            "Rollout(..., sampling=merge_sampling(ctx.sampling, wishes))"
        )
    altered = {id(way) for way in {id(way): way for way in (rest, *ways)}.values() if way and way.altered_by}
    if altered:
        rollouts = [
            _untrained(one) if id(rest if one.sampling is None else one.sampling) in altered else one
            for one in rollouts
        ]
    return rollouts, rest


ALTERED = "altered_sampling:sum"
"""The metric: samples that are not trained on because of how they were drawn."""


def _untrained(rollout: Rollout) -> Rollout:
    """Return the rollout, none of it trained on: nobody can say with which probability it was drawn."""
    mask = [False] * len(rollout.response_token_ids)
    return replace(rollout, mask=mask, metrics={**rollout.metrics, ALTERED: 1.0})


_DISTRIBUTION = ("temperature", "top_p", "top_k", "min_p", "altered_by")


def _distribution(sampling: Sampling) -> tuple[Any, ...]:
    """Return what decides what is drawn; lengths, stops and seeds do not."""
    return tuple(getattr(sampling, name) for name in _DISTRIBUTION)
