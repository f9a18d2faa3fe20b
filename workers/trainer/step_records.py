"""What is said on ``steps``, and which of what was said binds a step that is taken again. Pure; see ``schemas.step``.

::

    records of `steps` --take--> those of this trainer and run, the last one of each step
    a step that is due --> as it would be chosen now --binding--> what was written of it before, or None: write it

Failures: a record of a step to be taken that cannot be read ends the trainer. What has another key than the record of
such a step is not looked at: the topic is everybody's who trains, and is kept for good.
"""

from typing import Any

from schemas import StepBegun
from schemas.step import step_of_key
from trinity_bus.bus import Received, Undecodable
from trinity_bus.training.errors import TrainingError


class StepRecords:
    """What is known of steps that were begun.

    Args:
        trainer: Its name.
        run: Its run.
        trained: Steps that are in the newest checkpoint: nothing more is asked of them.
    """

    def __init__(self, trainer: str, run: str, trained: int) -> None:
        self._trainer = trainer
        self._run = run
        self._trained = trained
        self._begun: dict[int, StepBegun] = {}

    def take(self, received: Received[Any]) -> None:
        """Take in a record of ``steps``.

        Raises:
            TrainingError: It cannot be read.
        """
        record = received.record
        step = step_of_key(received.key, self._trainer)
        if step is None or step <= self._trained:
            return
        if isinstance(record, Undecodable):
            raise TrainingError(
                f"{received.place} cannot be read ({record.reason}: {record.detail}), and it may be of a step that is "
                "to be taken again: start a trainer that knows this version of the records"
            )
        said = isinstance(record, StepBegun) and (record.trainer, record.run, record.step)
        if said == (self._trainer, self._run, step):
            self._begun[step] = record

    @property
    def examples(self) -> int:
        """How many examples the steps to be taken again have chosen from; 0 where nothing is known of that."""
        return max((record.examples for record in self._begun.values()), default=0)

    def binding(self, chosen: StepBegun) -> StepBegun | None:
        """Return what was written of the step before, where it is the same step of the same batch; it is forgotten.

        Args:
            chosen: The step as it would be chosen now.
        """
        known = self._begun.pop(chosen.step, None)
        if known is None or _what(known) != _what(chosen):
            return None
        return known


def otherwise(known: StepBegun, chosen: StepBegun) -> str:
    """Return what the record of a step has otherwise than it would be chosen now; nothing where it is equal."""
    told = []
    if known.seed != chosen.seed:
        told.append(f"seed {known.seed}, now {chosen.seed}")
    then, now = (
        {(one.task_id, sample) for one in record.left_out for sample in one.samples} for record in (known, chosen)
    )
    if then != now:
        told.append(f"leaves out {len(then)}, now {len(now)}" + (" others" if len(then) == len(now) else ""))
    if (known.demonstrations, known.preferences) != (chosen.demonstrations, chosen.preferences):
        told.append("other examples")
    return "; ".join(told)


def _what(record: StepBegun) -> tuple[Any, ...]:
    """Return what must be equal for one record to bind the step of another: all but who chose, and what."""
    passed_over = record.skipped is not None
    return record.run, record.model, record.batch_id, record.sequence, record.groups, passed_over
