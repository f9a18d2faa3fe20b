"""What a step is made of: fetched from the log, chosen, and written on ``steps`` before the step begins.

::

    a batch whose turn it is --fetch--> its groups, in the order of its manifest --begin--> StepBegun, durable
                               |                                               '--> that of a former incarnation: obeyed
                               '--one is gone, or is something else: BatchError
"""

import logging

from schemas import BatchRecord, ExperienceGroup, StepBegun, StepGroup
from schemas.step import KEPT_STEPS, step_key
from schemas.topics import EXPERIENCES, STEPS, TRAINER_DEAD_LETTERS
from schemas.trainable import Bounds
from trinity_bus.bus import Bus, Producer, Undecodable
from trinity_bus.config import TrainerSettings
from trinity_bus.errors import RecordGoneError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import RECORDS_LOST
from trinity_bus.training import choice
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages.advantage import Advantage
from workers.trainer.agenda import Agenda, Due
from workers.trainer.announcer import TrainerIdentity
from workers.trainer.errors import BatchError, way_out
from workers.trainer.manifest import entries_to_train, first_replayable, groups_of, positions_of
from workers.trainer.step_records import StepRecords, otherwise

log = logging.getLogger(__name__)

_MAX_SHOWN = 8
"""Of what is left out, in a log line."""


class StepInputs:
    """Fetches and chooses.

    Args:
        settings: The trainer's.
        who: This incarnation of it.
        run: Its run.
        bounds: What the model can be trained on.
        records: What is known of steps that were begun before.
        bus: Connected.
        producer: Connected.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        who: TrainerIdentity,
        *,
        run: str,
        bounds: Bounds,
        records: StepRecords,
        bus: Bus,
        producer: Producer,
    ) -> None:
        self._settings = settings
        self._who = who
        self._run = run
        self._bounds = bounds
        self._wants_greedy = registry.make("advantage", Advantage, settings).wants_greedy
        self._records = records
        self._bus = bus
        self._producer = producer

    async def replay(self) -> None:
        """Take in what was written on ``steps`` before."""
        async with self._bus.reader(STEPS, start="beginning") as steps:
            async for received in steps.replay():
                self._records.take(received)

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

    async def begin(self, due: Due, step: int, groups: list[ExperienceGroup]) -> StepBegun:
        """Return what is durable of the step that begins: what was written of it before, or what is chosen now."""
        batch = due.batch
        entries = entries_to_train(batch) if due.skip is None else []
        limited = self._settings.limited_sampling == "train"
        chosen = StepBegun(
            trainer=self._settings.name,
            incarnation=self._who.incarnation,
            run=self._run,
            model=self._who.model,
            step=step,
            batch_id=batch.batch_id,
            sequence=batch.sequence,
            next_offset=due.next_offset,
            seed=self._settings.seed,
            groups=[StepGroup(task_id=entry.task_id, parts=entry.parts) for entry in entries],
            left_out=choice.left_out(groups, self._bounds, train_limited=limited, wants_greedy=self._wants_greedy),
            skipped=due.skip,
        )
        begun = self._records.binding(chosen)
        if begun is None:
            begun = chosen
            await (await self._producer.send(STEPS, step_key(self._settings.name, step), chosen))
            if step > KEPT_STEPS:
                await self._producer.send_raw(STEPS, step_key(self._settings.name, step - KEPT_STEPS), None)
        else:
            log.info("step %d was begun before, by %s: it is taken as then", step, begun.incarnation)
            if differs := otherwise(begun, chosen):
                log.warning(
                    "step %d is taken as its record says, not as the settings would have it now: %s", step, differs
                )
        if begun.left_out:
            total = sum(len(one.samples) for one in begun.left_out)
            shown = "; ".join(
                f"task {one.task_id}, sample {one.samples[0]}: {one.detail}" for one in begun.left_out[:_MAX_SHOWN]
            )
            log.warning("step %d leaves out %d samples: %s", step, total, shown)
        return begun
