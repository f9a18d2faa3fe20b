"""What a step is made of: fetched from the log, chosen, and written on ``steps`` before the step begins.

::

    a batch whose turn it is --fetch--> its groups, in the order of its manifest --begin--> StepBegun, durable
                               |                                               '--> that of a former incarnation: obeyed
                               '--one is gone, or is something else: BatchError
"""

import logging
from collections.abc import Sequence

from schemas import BatchRecord, ExperienceGroup, StepBegun, StepGroup
from schemas.topics import EXPERIENCES, TRAINER_DEAD_LETTERS
from schemas.trainable import Bounds
from trinity_bus.bus import Bus, Producer, Undecodable
from trinity_bus.config import TrainerSettings
from trinity_bus.errors import RecordGoneError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import RECORDS_LOST
from trinity_bus.training import choice
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages.advantage import Advantage
from trinity_bus.training.packing import TrainSample
from workers.trainer.agenda import Agenda, Due
from workers.trainer.announcer import TrainerIdentity
from workers.trainer.errors import BatchError, way_out
from workers.trainer.examples import Chosen, ExampleLog
from workers.trainer.manifest import entries_to_train, first_replayable, groups_of, positions_of
from workers.trainer.step_log import StepLog

log = logging.getLogger(__name__)


class StepInputs:
    """Fetches and chooses.

    Args:
        settings: The trainer's.
        who: This incarnation of it.
        bounds: What the model can be trained on.
        steps: The topic ``steps``.
        examples: What is mixed with the batches; None where nothing is.
        bus: Connected.
        producer: Connected.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        who: TrainerIdentity,
        *,
        bounds: Bounds,
        steps: StepLog,
        examples: ExampleLog | None,
        bus: Bus,
        producer: Producer,
    ) -> None:
        self._settings = settings
        self._who = who
        self._bounds = bounds
        self._wants_greedy = registry.make("advantage", Advantage, settings).wants_greedy
        self._steps = steps
        self._examples = examples
        self._bus = bus
        self._producer = producer

    async def replay(self) -> None:
        """Take in what was written on ``steps`` before."""
        await self._steps.replay()

    async def fetch(self, batch: BatchRecord, agenda: Agenda) -> list[ExperienceGroup]:
        """Return the experiences of a batch, in the order of its manifest.

        Args:
            batch: Whose turn it is.
            agenda: What comes after it.

        Raises:
            BatchError: One is gone, or is not what the manifest says.
        """
        entries = entries_to_train(batch)
        positions = positions_of(batch, entries)
        if not positions:
            log.warning("batch %s: every task failed; the step leaves the weights as they are", batch.batch_id)
            return []
        try:
            fetched = await self._bus.fetch(EXPERIENCES, positions)
        except RecordGoneError as error:
            RECORDS_LOST.add(1, {names.MESSAGING_DESTINATION_TEMPLATE: EXPERIENCES.name})
            kept = first_replayable(agenda.following(), await self._bus.beginning_offsets(EXPERIENCES))
            left = (
                "no later one is known that can be"
                if kept is None
                else f"the first that can still be is {kept.sequence}"
            )
            raise BatchError(
                f"batch {batch.batch_id}, step {batch.sequence}, cannot be trained on: {error}; {left}; "
                f"{way_out(batch.batch_id)}"
            ) from error
        for met in self._bus.passed_over():
            if isinstance(met.record, Undecodable):
                await self._producer.send_dead_letter(
                    met, met.record.reason, met.record.detail, to=TRAINER_DEAD_LETTERS
                )
        return groups_of(batch, entries, fetched)

    async def settle_examples(self, known: int) -> None:
        """Find out which examples there are, where some are learned from; see :meth:`ExampleLog.settle`."""
        if self._examples is not None:
            await self._examples.settle(known or self._steps.examples)

    async def begin(
        self, due: Due, step: int, groups: list[ExperienceGroup]
    ) -> tuple[StepBegun, Sequence[TrainSample]]:
        """Return what is durable of the step that begins, and its examples.

        It is what was written of it before, or what is chosen now.
        """
        batch, shown = due.batch, Chosen()
        entries = entries_to_train(batch) if due.skip is None else []
        if self._examples is not None and due.skip is None:
            shown = await self._examples.chosen(seed=self._settings.seed, step=step)
        limited = self._settings.limited_sampling == "train"
        left = choice.left_out(groups, self._bounds, train_limited=limited, wants_greedy=self._wants_greedy)
        chosen = StepBegun(
            trainer=self._steps.trainer,
            incarnation=self._who.incarnation,
            run=self._steps.run,
            model=self._who.model,
            step=step,
            batch_id=batch.batch_id,
            sequence=batch.sequence,
            next_offset=due.next_offset,
            seed=self._settings.seed,
            groups=[StepGroup(task_id=entry.task_id, parts=entry.parts) for entry in entries],
            left_out=[*left, *shown.left_out],
            demonstrations=shown.positions,
            examples=0 if self._examples is None else self._examples.count,
            skipped=due.skip,
        )
        begun = await self._steps.begin(chosen)
        if begun.demonstrations != shown.positions:
            if self._examples is None:
                raise TrainingError(
                    f"step {step} was begun with demonstrations: set trainer.strategy to 'mix' until it is trained"
                )
            shown = await self._examples.at(begun.demonstrations)
        return begun, shown.samples
