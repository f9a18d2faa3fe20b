"""Which samples a model can be trained on. Pure; the one place that decides it, for explorers and trainers alike.

A record may be well formed and still hold what ends a training step, or spoils every weight: such a sample is *flawed*.

=================  ===================================================================================================
``no_prompt``      nothing stands before its first token that could predict it
``too_long``       it has more tokens than the model has positions
``bad_token``      a token id is negative, or not below the size of the vocabulary
``bad_logprob``    the log-probability of a token that is trained on is not finite, or that of a probability above 1
``bad_reward``     its reward is infinite, or larger than any that a float32 gradient survives; NaN means that there is
                   none, and is no flaw
=================  ===================================================================================================

An explorer refuses an attempt with a flawed sample. A trainer leaves out the sample, as one without a reward: the
others of its group are trained on as if it had never been drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from schemas.experience import ExperienceGroup, Sample

# What the methods of arrays call, by a detour that takes as long as this does for a few numbers.
_smallest, _largest = np.minimum.reduce, np.maximum.reduce

MAX_REWARD = 1e9
"""Most that a reward may be, up or down. Where advantages are not normalised they are as large as rewards, and the
square of a gradient must fit into a float32."""
LOGPROB_SLACK = 1e-2
"""How far above 0 rounding may carry a log-probability."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a model can take in."""

    vocabulary: int
    """Token ids lie below it."""
    positions: int
    """Tokens of the longest sequence."""


class FlawKind(StrEnum):
    """What is wrong with a sample; see the module's docstring."""

    NO_PROMPT = "no_prompt"
    TOO_LONG = "too_long"
    BAD_TOKEN = "bad_token"  # noqa: S105 - a token of a language model
    BAD_LOGPROB = "bad_logprob"
    BAD_REWARD = "bad_reward"


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first thing that is wrong with one sample."""

    sample: int
    """Its index in the group."""
    kind: FlawKind
    detail: str
    """For people, with the value."""


def flaws(group: ExperienceGroup, bounds: Bounds) -> list[Flaw]:
    """Return the flawed samples of a group, in order, each once.

    Args:
        group: Well formed, as its codec has it.
        bounds: Of the model.
    """
    return [] if _flawless(group, bounds) else list(_found(group, bounds))


def _flawless(group: ExperienceGroup, bounds: Bounds) -> bool:
    """Whether all samples are in order: a few passes over whole columns, because nearly all groups are."""
    # As unsigned numbers, negative ones are larger than any vocabulary.
    if len(group.tokens) and _largest(group.tokens.view(np.uint32)) >= bounds.vocabulary:
        return False
    if _smallest(group.prompt_lengths) < 1 or _largest(group.lengths) > bounds.positions:
        return False
    # Also of tokens that are not trained on: which those are, the slow way tells. Of a NaN, neither comparison is true.
    drawn = group.logprobs
    if len(drawn) and not (_smallest(drawn) > -np.inf and _largest(drawn) <= LOGPROB_SLACK):
        return False
    return not (np.abs(group.rewards) > MAX_REWARD).any()


def _found(group: ExperienceGroup, bounds: Bounds) -> Iterator[Flaw]:
    for index, sample in enumerate(group.samples()):
        flaw = _of(sample, bounds)
        if flaw is not None:
            yield Flaw(index, *flaw)


def _of(sample: Sample, bounds: Bounds) -> tuple[FlawKind, str] | None:
    if sample.prompt_length < 1:
        return FlawKind.NO_PROMPT, "it has no prompt: nothing predicts its first token"
    if len(sample.tokens) > bounds.positions:
        return FlawKind.TOO_LONG, f"it has {len(sample.tokens)} tokens, the model has {bounds.positions} positions"
    lowest, highest = int(sample.tokens.min()), int(sample.tokens.max())
    if lowest < 0 or highest >= bounds.vocabulary:
        wrong = lowest if lowest < 0 else highest
        return FlawKind.BAD_TOKEN, f"token id {wrong} is not one of the model's 0 to {bounds.vocabulary - 1}"
    trained = sample.logprobs[sample.mask]
    wrong_ones = trained[~(np.isfinite(trained) & (trained <= LOGPROB_SLACK))]
    if len(wrong_ones):
        return FlawKind.BAD_LOGPROB, f"{wrong_ones[0]:g} is no log-probability of a token that was drawn"
    if not (np.isnan(sample.reward) or abs(sample.reward) <= MAX_REWARD):
        return FlawKind.BAD_REWARD, f"reward {sample.reward:g} is beyond {MAX_REWARD:g} (a float32 holds up to 3.4e38)"
    return None
