"""How each sample was drawn, said of it where its workflow does not. Pure.

A trainer computes log-probabilities at the temperature at which a sample was drawn, so every sample has to say it. What
the engine was asked is known here; which sample came of which question is not, where a workflow asked in several ways::

    asked in one way         --> every sample that does not say it was drawn so
    asked in several ways    --> each sample has to say it (``Rollout.sampling``), or nobody knows: an error
    never asked              --> nothing was drawn: nothing is said

Whether what was drawn so is trained on is the trainer's to say (``trinity_bus.training.steps.choice``).
"""

from collections.abc import Sequence
from typing import Any

from schemas.experience import Rollout
from schemas.sampling import Sampling
from trinity_bus.errors import TrinityError


class UnknownSamplingError(TrinityError, ValueError):
    pass


def note_sampling(asked: list[Sampling], sampling: Sampling) -> None:
    """Add a way of drawing to those that are known, unless it draws as one of them does."""
    if any(known is sampling for known in asked):
        return
    if not asked or all(_distribution(known) != _distribution(sampling) for known in asked):
        asked.append(sampling)


def sampling_of_rest(rollouts: Sequence[Rollout], asked: Sequence[Sampling]) -> Sampling | None:
    """Return how those rollouts were drawn that do not say it; None where there are none, or nothing was drawn."""
    if all(one.sampling is not None for one in rollouts) or not asked:
        return None
    if len(asked) > 1:
        told = ", ".join(str(dict(zip(_DISTRIBUTION, _distribution(one), strict=True))) for one in asked)
        raise UnknownSamplingError(
            f"the engine was asked to draw in {len(asked)} ways ({told}): say of each rollout which it was, as in "
            "Rollout(..., sampling=merge_sampling(ctx.sampling, wishes))"
        )
    return asked[0]


_DISTRIBUTION = ("temperature", "top_p", "top_k", "min_p", "altered_by")


def _distribution(sampling: Sampling) -> tuple[Any, ...]:
    # What decides what is drawn; lengths, stops and seeds do not.
    return tuple(getattr(sampling, name) for name in _DISTRIBUTION)
