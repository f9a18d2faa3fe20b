"""What a step is made of: which samples are left out, and why, and which other groups are trained on. Pure.

The rule needs the groups, the model's shape and one setting. It is applied once, before a step begins, and written to
``steps``; a step that is taken again takes what is written there (``schemas.step``).

The reasons are those of ``FlawKind``, with which no model of this shape can be trained on a sample
(``schemas.groups.trainable``), and :class:`Unfit`. The others of its group are trained on as if such a sample had never
been drawn. Of BASELINE, EMPTY and ALL_MASKED there is nothing to leave out, or they are wanted: they count in their
group with the reward that they have, and are told of.

``trainer.strategy`` decides which groups a step learns from, beside or in place of those of its batch.

``priority`` learns once more from groups of earlier steps, :func:`ranked`::

    priority of a group = the step in which it was new - trainer.replay_decay * how often it was trained on since

The ``trainer.replay_groups`` of the highest are taken, of those that were new in the last ``trainer.replay_steps``
steps and that teach something. Equal ones are drawn by ``(seed, step)``. The order is that of Trinity-RFT's
``linear_decay``.

``dynamic_sampling`` trains on batches together, :func:`waiting` and :func:`has_to_wait`::

    batch --enough groups teach something, those that wait included--> one step is trained on all of them
      '----too few--> its step changes nothing, its samples are left out as WAITING, and its groups wait for the next

The wait ends after ``trainer.effective_batches`` batches, those that are passed over included, or with the last step:
then there is training with what there is. docs/objectives.md says why.

All of that stands on the log: on ``steps`` what earlier steps were made of, on ``experiences`` what the groups are. So
a restart repeats the choice.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np
from msgspec.structs import replace

from schemas import ExperienceGroup, LeftOut, StepBegun, StepGroup
from schemas.event import Position
from schemas.experience import Bool
from schemas.groups.pieces import join_groups, piece
from schemas.groups.trainable import Bounds, FlawKind, flaws
from schemas.record import Metrics
from schemas.step import MAX_WHY_CHARS
from trinity_bus.config import TrainerSettings
from trinity_bus.training.steps.examples import ExampleFlaw

# The metric that counts samples that are left out; ``samples_left_out/<reason>`` counts those of a kind.
LEFT_OUT = "samples_left_out"


class Unfit(StrEnum):
    LIMITED_SAMPLING = "limited_sampling"
    GREEDY = "greedy"
    BASELINE = "baseline"
    EMPTY = "empty"
    ALL_MASKED = "all_masked"
    WAITING = "waiting"


REASONS = tuple(kind.value for kinds in (FlawKind, Unfit, ExampleFlaw) for kind in kinds)
_COUNTS_ALL_THE_SAME = frozenset({Unfit.BASELINE.value, Unfit.EMPTY.value, Unfit.ALL_MASKED.value})
_DRAWN_GREEDILY = frozenset({Unfit.GREEDY.value, Unfit.BASELINE.value})
# Which are no samples of a task, though one may have the same id
_OF_EXAMPLES = frozenset(kind.value for kind in ExampleFlaw)
_DETAILS = {
    Unfit.LIMITED_SAMPLING: (
        "it was drawn with a penalty or the like; or with top-p, top-k or min-p, and nobody knows which tokens these "
        "have kept: there were too many, or its engine or workflow does not tell (docs/objectives.md)"
    ),
    Unfit.GREEDY: "it was drawn at temperature 0",
    Unfit.BASELINE: "it was drawn at temperature 0, and the others are compared with it",
    Unfit.EMPTY: "it has no response",
    Unfit.ALL_MASKED: "nothing of its response is to be trained on",
}


def left_out(
    groups: Sequence[ExperienceGroup], bounds: Bounds, *, train_limited: bool, wants_greedy: bool
) -> list[LeftOut]:
    """``wants_greedy``: whether the advantage compares with greedy samples."""
    greedy = Unfit.BASELINE if wants_greedy else Unfit.GREEDY
    return [one for group in groups for one in _of_group(group, bounds, greedy, train_limited=train_limited)]


def _of_group(group: ExperienceGroup, bounds: Bounds, greedy: Unfit, *, train_limited: bool) -> Iterable[LeftOut]:
    reasons: dict[int, tuple[str, str]] = {}
    for kind, which in _unfit(group, greedy):
        if kind is Unfit.LIMITED_SAMPLING and train_limited:
            continue
        for sample in np.flatnonzero(which).tolist():
            reasons.setdefault(sample, (kind.value, _DETAILS[kind]))
    # What is wrong with a sample comes before what is only not wanted.
    for flaw in flaws(group, bounds):
        reasons[flaw.sample] = (flaw.kind.value, flaw.detail)
    if not reasons:
        return
    samples = defaultdict(list)
    for sample, (reason, _) in sorted(reasons.items()):
        samples[reason].append(sample)
    for reason, indices in samples.items():
        detail = reasons[indices[0]][1][:MAX_WHY_CHARS]
        yield LeftOut(task_id=group.task_id, reason=reason, samples=indices, detail=detail)


def _unfit(group: ExperienceGroup, greedy: Unfit) -> Iterable[tuple[Unfit, Bool]]:
    if group.sampling is not None:
        temperature, limits = group.sampling[:, 0], group.sampling[:, 1:]
        known = ~np.isnan(temperature)
        yield greedy, temperature == 0
        yield Unfit.LIMITED_SAMPLING, known & (limits != np.array([1, 0, 0], np.float32)).any(1) & ~_repeatable(group)
    responses = group.lengths - group.prompt_lengths
    ends = np.cumsum(responses)
    trained = np.concatenate([[0], np.cumsum(group.mask)])
    yield Unfit.EMPTY, responses == 0
    yield Unfit.ALL_MASKED, trained[ends] == trained[ends - responses]


def _repeatable(group: ExperienceGroup) -> Bool:
    # Whether of some tokens is known from which they were drawn, and nothing else had a say. The others are not trained
    # on, and have zeros alone; what cannot be read is a flaw.
    if group.kept is None or group.sampling is None:
        return np.zeros(len(group), np.bool_)
    known = [sample.kept is not None and bool(sample.kept.any()) for sample in group.samples()]
    return np.array(known, np.bool_) & ~np.isnan(group.sampling).any(1)


def retold(left: Sequence[LeftOut], *, wants_greedy: bool) -> list[LeftOut]:
    """Return what another trainer has left out, with greedy samples as this one's advantage has them."""
    wanted = Unfit.BASELINE if wants_greedy else Unfit.GREEDY
    return [
        replace(one, reason=wanted.value, detail=_DETAILS[wanted]) if one.reason in _DRAWN_GREEDILY else one
        for one in left
    ]


def without(groups: Sequence[ExperienceGroup], left: Sequence[LeftOut]) -> list[ExperienceGroup]:
    """Return the groups as if what is left out had never been drawn; a group of which nothing is left is gone."""
    gone = unwanted(left)
    kept = (_kept(group, gone[group.task_id]) if group.task_id in gone else group for group in groups)
    return [group for group in kept if group is not None]


def origins(begun: StepBegun) -> list[tuple[str, Position, int]]:
    """Return task, record and number in it of each sample that :func:`without` leaves of a step's groups."""
    gone = unwanted(begun.left_out)
    found = []
    for group in (*begun.groups, *begun.replayed):
        first = 0
        for part in group.parts:
            if part.position is not None:
                found += [
                    (group.task_id, part.position, number)
                    for number in range(part.samples)
                    if first + number not in gone.get(group.task_id, ())
                ]
            first += part.samples
    return found


def unwanted(left: Sequence[LeftOut]) -> dict[str, set[int]]:
    """Return which samples of each task are as if they had never been drawn."""
    found: dict[str, set[int]] = defaultdict(set)
    for one in left:
        if one.reason not in _COUNTS_ALL_THE_SAME | _OF_EXAMPLES:
            found[one.task_id].update(one.samples)
    return found


def _kept(group: ExperienceGroup, gone: set[int]) -> ExperienceGroup | None:
    pieces = [piece(group, sample, sample + 1) for sample in range(len(group)) if sample not in gone]
    return join_groups(pieces) if pieces else None


def counts(left: Sequence[LeftOut]) -> Metrics:
    kinds: dict[str, int] = defaultdict(int)
    for one in left:
        kinds[one.reason] += len(one.samples)
    return {LEFT_OUT: float(sum(kinds.values())), **{f"{LEFT_OUT}/{kind}": float(n) for kind, n in kinds.items()}}


# Keeps these draws apart from those that shuffle the samples of the same seed and step
_OWN_DRAWS = 1


def ranked(begun: Iterable[StepBegun], settings: TrainerSettings, *, step: int) -> list[StepGroup]:
    """``begun`` has what earlier steps were made of, each once, the oldest first."""
    earlier = [record for record in begun if step - settings.replay_steps <= record.step < step]
    uses = Counter(group.task_id for record in earlier for group in record.replayed)
    new = [(record.step - settings.replay_decay * uses[group.task_id], group) for record in earlier
           for group in record.groups]  # fmt: skip
    lots = np.random.default_rng((settings.seed, step, _OWN_DRAWS)).permutation(len(new)).tolist()
    order = sorted(range(len(new)), key=lambda i: (-new[i][0], lots[i]))
    return [new[i][1] for i in order]


def waiting(begun: Iterable[StepBegun], *, step: int) -> list[StepBegun]:
    """Return the steps before one that changed nothing because of what was to come, the oldest first."""
    found: list[StepBegun] = []
    for record in sorted(begun, key=lambda record: record.step, reverse=True):
        if record.step >= step:
            continue
        waits = any(one.reason == Unfit.WAITING.value for one in record.left_out)
        if record.step != step - 1 - len(found) or not (record.skipped or waits):
            break
        found.append(record)
    return found[::-1]


def has_to_wait(
    taught: Sequence[bool], settings: TrainerSettings, *, step: int, groups: int, before: Sequence[StepBegun]
) -> bool:
    """``taught``: which groups teach something, those that wait included; ``groups``: of its own batch."""
    wanted = groups if settings.effective_groups is None else settings.effective_groups
    is_last = settings.is_done(step) or len(before) + 1 >= settings.effective_batches
    return not is_last and sum(taught) < wanted


def left_waiting(groups: Sequence[ExperienceGroup]) -> list[LeftOut]:
    why = "too few groups of its step teach something: it is trained on with those of the next"
    return [
        LeftOut(task_id=group.task_id, reason=Unfit.WAITING.value, samples=list(range(len(group))), detail=why)
        for group in groups
    ]
