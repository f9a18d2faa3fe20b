"""Which groups a step learns from, beside or in place of those of its batch: ``trainer.strategy``. Pure.

``priority`` learns once more from groups of earlier steps, :func:`ranked`::

    priority of a group = the step in which it was new - trainer.replay_decay * how often it was trained on since

The ``trainer.replay_groups`` of the highest are taken, of those that were new in the last ``trainer.replay_steps``
steps and that teach something. Equal ones are drawn by ``(seed, step)``. The order is that of Trinity-RFT's
``linear_decay``.

``dynamic_sampling`` trains on batches together, :func:`waiting` and :func:`has_to_wait`::

    batch --enough groups teach something, those that wait included--> one step is trained on all of them
      '----too few--> its step changes nothing, its samples are left out as WAITING, and its groups wait for the next

Groups whose runs have equal rewards teach nothing, so a step of few others has a noisier gradient; DAPO goes on drawing
until a batch is full of groups that do (Yu et al., arXiv:2503.14476, section 3.2). The weights stand still meanwhile:
samples that wait are as much on policy as those that they wait for. It ends after ``trainer.effective_batches``
batches, or with the last step: then there is training with what there is. A batch that is passed over counts among
them.

All of that stands on the log: on ``steps`` what earlier steps were made of, on ``experiences`` what the groups are. So
a restart repeats the choice.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from schemas import ExperienceGroup, LeftOut, StepBegun, StepGroup
from trinity_bus.config import TrainerSettings
from trinity_bus.training.steps.choice import Unfit

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
