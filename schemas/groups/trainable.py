"""Which samples a model can be trained on. Pure; the one place that decides it, for explorers and trainers alike.

A record may be well formed and still hold what ends a training step, or spoils every weight: such a sample is *flawed*.

=================  ===================================================================================================
``no_prompt``      nothing stands before its first token that could predict it
``too_long``       it has more tokens than the model has positions
``bad_token``      a token id is negative, or not below the size of the vocabulary
``bad_logprob``    the log-probability of a token that is trained on is not finite, or that of a probability above 1
``bad_reward``     its reward, or that of a turn, is infinite, or larger than any that a float32 gradient survives; NaN
                   means that there is none, and is no flaw
``bad_sampling``   what it says of how it was drawn is none: a temperature below 0 or above 10, a top-p outside (0, 1],
                   a negative top-k, a min-p outside [0, 1]; NaN in all four: nobody knows, which is no flaw, nor is
                   NaN in the last three: something else limited what was drawn
``bad_teacher``    the teacher's log-probability of a token that is trained on is not finite or that of a probability
                   above 1; NaN for all of them: the teacher was not asked, which is no flaw
``bad_routes``     it names an expert that the model does not have
``bad_kept``       the sets of tokens that its own were drawn from cannot be read, name one that is not the model's, or
                   lack a token that was drawn
=================  ===================================================================================================

An explorer refuses an attempt with a flawed sample. A trainer leaves out the sample, as one without a reward: the
others of its group are trained on as if it had never been drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from schemas.experience import Bool, ExperienceGroup, Float32, Int32, Sample, SampledWith, UInt8
from schemas.groups.kept import decode_kept
from schemas.sampling import MAX_TEMPERATURE

# What the methods of arrays call, by a detour that takes as long as this does for a few numbers.
_smallest, _largest = np.minimum.reduce, np.maximum.reduce

# Most that a reward may be, up or down. Where advantages are not normalised they are as large as rewards, and the
# square of a gradient must fit into a float32.
MAX_REWARD = 1e9
LOGPROB_SLACK = 1e-2  # how far above 0 rounding may carry a log-probability


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a model can take in."""

    vocabulary: int  # token ids lie below it
    positions: int  # tokens of the longest sequence
    experts: int = 0  # of each layer that has some; 0: recorded routes are not checked, for which the model has no use


class FlawKind(StrEnum):
    """What is wrong with a sample; see the module's docstring."""

    NO_PROMPT = "no_prompt"
    TOO_LONG = "too_long"
    BAD_TOKEN = "bad_token"  # noqa: S105 - a token of a language model
    BAD_LOGPROB = "bad_logprob"
    BAD_REWARD = "bad_reward"
    BAD_SAMPLING = "bad_sampling"
    BAD_TEACHER = "bad_teacher"
    BAD_ROUTES = "bad_routes"
    BAD_KEPT = "bad_kept"


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first thing that is wrong with one sample."""

    sample: int  # its index in the group
    kind: FlawKind
    detail: str  # for people, with the value


def flaws(group: ExperienceGroup, bounds: Bounds) -> list[Flaw]:
    """Return the flawed samples of a group (well formed, as its codec has it), in order, each once."""
    return [] if _flawless(group, bounds) else list(_found(group, bounds))


def _flawless(group: ExperienceGroup, bounds: Bounds) -> bool:
    # A few passes over whole columns, because nearly all groups are flawless. What there is of each sample is looked at
    # in Python's own numbers, because a group has a handful of them.
    # As unsigned numbers, negative ones are larger than any vocabulary.
    if len(group.tokens) and _largest(group.tokens.view(np.uint32)) >= bounds.vocabulary:
        return False
    if min(group.prompt_lengths.tolist()) < 1 or max(group.lengths.tolist()) > bounds.positions:
        return False
    # Also of tokens that are not trained on: which those are, the slow way tells. Of a NaN, neither comparison is true.
    drawn = group.logprobs
    if len(drawn) and not (_smallest(drawn) > -np.inf and _largest(drawn) <= LOGPROB_SLACK):
        return False
    if any(abs(reward) > MAX_REWARD for reward in group.rewards.tolist()):
        return False
    return group.is_plain or _flawless_optional(group, bounds)


_MOST_TOP_K = float(np.finfo(np.float32).max)


def _flawless_optional(group: ExperienceGroup, bounds: Bounds) -> bool:
    # What of them is not known, the slow way looks at.
    return (
        (group.turn_rewards is None or bool(_are_rewards(group.turn_rewards).all()))
        and (group.sampling is None or all(_is_sampling(*row) for row in group.sampling.tolist()))
        and (group.teacher_logprobs is None or bool(_are_logprobs(group.teacher_logprobs).all()))
        and (group.routes is None or not bounds.experts or int(group.routes.max()) < bounds.experts)
        and group.kept is None
    )


def _is_sampling(temperature: float, top_p: float, top_k: float, min_p: float) -> bool:
    return 0 <= temperature <= MAX_TEMPERATURE and 0 < top_p <= 1 and 0 <= top_k <= _MOST_TOP_K and 0 <= min_p <= 1


def _described(drawn: SampledWith) -> SampledWith:
    # The same, as if nothing else had a say in it.
    return SampledWith(drawn.temperature, 1, 0, 0) if np.isnan(drawn[1:]).all() else drawn


def _are_logprobs(values: Float32) -> Bool:
    return np.isfinite(values) & (values <= LOGPROB_SLACK)


def _are_rewards(rewards: Float32) -> Bool:
    return np.isnan(rewards) | (np.abs(rewards) <= MAX_REWARD)


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
    wrong_ones = trained[~_are_logprobs(trained)]
    if len(wrong_ones):
        return FlawKind.BAD_LOGPROB, f"{wrong_ones[0]:g} is no log-probability of a token that was drawn"
    if not (np.isnan(sample.reward) or abs(sample.reward) <= MAX_REWARD):
        return FlawKind.BAD_REWARD, f"reward {sample.reward:g} is beyond {MAX_REWARD:g} (a float32 holds up to 3.4e38)"
    return _of_optional(sample, bounds)


def _of_optional(sample: Sample, bounds: Bounds) -> tuple[FlawKind, str] | None:
    if sample.turn_rewards is not None and not (good := _are_rewards(sample.turn_rewards)).all():
        wrong = sample.turn_rewards[~good][0]
        return FlawKind.BAD_REWARD, f"the reward {wrong:g} of a turn is beyond {MAX_REWARD:g}"
    if sample.sampling is not None and not _is_sampling(*_described(sample.sampling)):
        return FlawKind.BAD_SAMPLING, f"nothing is drawn with {sample.sampling}"
    if sample.teacher_logprobs is not None:
        teacher = sample.teacher_logprobs[sample.mask]
        wrong_ones = teacher[~_are_logprobs(teacher)]
        if len(wrong_ones) and not np.isnan(teacher).all():
            return FlawKind.BAD_TEACHER, f"{wrong_ones[0]:g} is no log-probability under a teacher"
    if sample.routes is not None and bounds.experts and (highest := int(sample.routes.max())) >= bounds.experts:
        return FlawKind.BAD_ROUTES, f"expert {highest} is not one of the model's 0 to {bounds.experts - 1}"
    response = sample.tokens[sample.prompt_length :]
    if sample.kept is not None and (wrong_set := _wrong_set(response, sample.kept, bounds)) is not None:
        return FlawKind.BAD_KEPT, wrong_set
    return None


def is_drawn_by(tokens: Int32, logprobs: Float32, kept: bytes | None, bounds: Bounds) -> bool:
    """Return whether a model may have drawn these tokens, each with its log-probability, from what was kept."""
    return (
        int(_largest(tokens.view(np.uint32), initial=0)) < bounds.vocabulary
        and bool(_are_logprobs(logprobs).all())
        and (kept is None or _wrong_set(tokens, kept, bounds) is None)
    )


def _wrong_set(response: Int32, kept: UInt8 | bytes, bounds: Bounds) -> str | None:
    try:
        counts, ids = decode_kept(kept, len(response))
    except ValueError as error:
        return str(error)
    if (highest := int(ids.max(initial=0))) >= bounds.vocabulary:
        return f"token id {highest}, which was kept, is not one of the model's 0 to {bounds.vocabulary - 1}"
    owners = np.repeat(np.arange(len(response)), counts)
    # Of tokens that are not trained on, too: their log-probability is computed, and times nothing it is no number.
    lacks = counts > 0
    lacks[owners[ids == response[owners]]] = False
    if not lacks.any():
        return None
    at = int(lacks.argmax())
    return f"token id {response[at]} is not among the {counts[at]} that it was drawn from"
