"""Which batches are trained on together, with ``trainer.strategy=dynamic_sampling``. Pure.

::

    batch --enough groups teach something, those that wait included--> one step is trained on all of them
      '----too few--> its step changes nothing, its samples are left out as WAITING, and its groups wait for the next

Groups whose runs have equal rewards teach nothing, so a step of few others has a noisier gradient; DAPO goes on drawing
until a batch is full of groups that do (Yu et al., arXiv:2503.14476, section 3.2). The weights stand still meanwhile:
samples that wait are as much on policy as those that they wait for.

What waits is what ``steps`` says of the steps right before: a restart repeats the choice. It ends after
``trainer.effective_batches`` batches, or with the last step: then there is training with what there is. A batch that is
passed over counts among them.
"""

from collections.abc import Iterable, Sequence

from schemas import ExperienceGroup, LeftOut, StepBegun
from trinity_bus.config import TrainerSettings
from trinity_bus.training.steps.choice import Unfit


def waiting(begun: Iterable[StepBegun], *, step: int) -> list[StepBegun]:
    """Return the steps before one that changed nothing because of what was to come, the oldest first."""
    found: list[StepBegun] = []
    for record in sorted(begun, key=lambda record: record.step, reverse=True):
        if record.step >= step:
            continue
        if record.step != step - 1 - len(found) or not (record.skipped or _waits(record)):
            break
        found.append(record)
    return found[::-1]


def has_to_wait(
    taught: Sequence[bool], settings: TrainerSettings, *, step: int, groups: int, before: Sequence[StepBegun]
) -> bool:
    """Whether a step is to change nothing, so that its groups are trained on together with those of the next.

    Args:
        taught: Which groups teach something, those that wait included.
        groups: Of its own batch.
        before: The steps that wait.
    """
    wanted = groups if settings.effective_groups is None else settings.effective_groups
    is_last = settings.is_done(step) or len(before) + 1 >= settings.effective_batches
    return not is_last and sum(taught) < wanted


def left_waiting(groups: Sequence[ExperienceGroup]) -> list[LeftOut]:
    why = "too few groups of its step teach something: it is trained on with those of the next"
    return [
        LeftOut(task_id=group.task_id, reason=Unfit.WAITING.value, samples=list(range(len(group))), detail=why)
        for group in groups
    ]


def _waits(record: StepBegun) -> bool:
    return any(one.reason == Unfit.WAITING.value for one in record.left_out)
