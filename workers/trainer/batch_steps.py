"""What a step on a batch is made of: fetched from the log, chosen, and written on ``steps`` before the step begins.

::

    open:   how many examples there are, and `batches` to its end: what the log says of a batch may stand behind it
    wait:   until a batch's turn comes (``batch_schedule``)

    a batch whose turn it is --fetch--> its groups, in the order of its manifest --begin--> StepBegun, durable
                               |                                               '--> that of a former incarnation: obeyed
                               '--one is gone, or is something else: BatchError, which names the first batch known
                                  to follow whose groups are all there
    earlier steps, with trainer.strategy=priority --ranked--> those that teach something: fetched, and begun with
    steps that waited, with trainer.strategy=dynamic_sampling --> fetched; it begins with them, or waits too
"""

import asyncio
import logging
from collections.abc import Sequence

from opentelemetry import trace

from schemas import BatchRecord, ExperienceGroup, LeftOut, StepBegun, StepGroup
from schemas.groups.trainable import Bounds
from schemas.topics import EXPERIENCES, TRAINER_DEAD_LETTERS
from trinity_bus.bus import Reader, Undecodable
from trinity_bus.errors import RecordGoneError
from trinity_bus.health.process import watching
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import links
from trinity_bus.telemetry.metrics import RECORDS_LOST
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages import Advantage
from trinity_bus.training.steps import choice
from trinity_bus.training.steps.packing import TrainSample
from trinity_bus.training.steps.samples import teach
from workers.trainer import batch_schedule
from workers.trainer.examples import Chosen
from workers.trainer.training_loop import StepInput, StepSource, TrainerContext

log = logging.getLogger(__name__)

_POLL_S = 1.0


class BatchSteps(StepSource):
    def __init__(
        self, around: TrainerContext, *, bounds: Bounds, schedule: batch_schedule.BatchSchedule, batches: Reader
    ) -> None:
        self._around = around
        self._settings = around.trainer
        self._bounds = bounds
        self._schedule = schedule
        self._batches = batches
        self._news = asyncio.Event()
        self._opened = TrainingProgress()
        self._sequence = 0
        self._due: batch_schedule.Due | None = None
        self._advantage: Advantage = registry.make("advantage", Advantage, around.trainer)
        # Of the tasks that may be learned from once more, those of which it is known
        self._teaches: dict[str, bool] = {}
        self._steps = around.steps
        self._examples = around.examples

    async def open(self, progress: TrainingProgress) -> None:
        self._opened, self._sequence = progress, progress.sequence
        if self._examples is not None:
            await self._examples.settle(progress.examples or self._steps.records.examples)
        async for received in self._batches.replay():
            self._schedule.take(received)

    async def read_ahead(self) -> None:
        while True:
            for received in await self._batches.batch(_POLL_S):
                self._schedule.take(received)
                self._news.set()

    async def wait(self, _step: int) -> None:
        while True:
            self._news.clear()
            self._due = self._schedule.next(self._sequence)
            if self._due is not None:
                return
            # Not watched while it trains: nobody waits for what is read then.
            with watching("the batches", self._batches.keeps_up):
                await self._news.wait()

    async def begin(self, step: int) -> StepInput:
        due, span = self._due, trace.get_current_span()
        if due is None:
            raise ValueError(f"step {step} has no batch: wait for it first")
        batch = due.batch
        for link in links(batch.trace_links):
            span.add_link(link.context)
        # Each step makes one version.
        version = self._opened.version - self._opened.step + step
        span.set_attributes({names.RL_BATCH_ID: batch.batch_id, names.RL_MODEL_VERSION: version})
        groups: list[ExperienceGroup] = []
        if due.skip is None:
            groups = await self.fetch(batch)
        else:
            span.set_attribute(names.RL_BATCH_SKIPPED, due.skip)
            log.warning("batch %s is passed over: %s", batch.batch_id, due.skip)
        begun, trained, shown = await self.choose(due, step, groups)
        self._sequence = batch.sequence
        # A former incarnation's record may be of another log, and have an operator's former reason.
        return StepInput(begun.model_copy(update={"next_offset": due.next_offset, "skipped": due.skip}), trained, shown)

    async def fetch(self, batch: BatchRecord) -> list[ExperienceGroup]:
        entries = batch_schedule.entries_to_train(batch)
        if not entries:
            log.warning("batch %s: every task failed; the step leaves the weights as they are", batch.batch_id)
            return []
        what = f"batch {batch.batch_id}, step {batch.sequence}, cannot be trained on"
        return await self._present(batch, entries, what)

    async def _present(
        self, batch: BatchRecord, named: Sequence[batch_schedule.Entry], what: str
    ) -> list[ExperienceGroup]:
        try:
            return await self._groups(batch, named)
        except RecordGoneError as error:
            kept = batch_schedule.first_replayable(
                self._schedule.following(), await self._around.bus.beginning_offsets(EXPERIENCES)
            )
            left = (
                "no later one is known that can be"
                if kept is None
                else f"the first that can still be is {kept.sequence}"
            )
            raise batch_schedule.BatchError(
                f"{what}: {error}; {left}; {batch_schedule.way_out(batch.batch_id)}"
            ) from error

    async def _groups(self, batch: BatchRecord, named: Sequence[batch_schedule.Entry]) -> list[ExperienceGroup]:
        try:
            fetched = await self._around.bus.fetch(EXPERIENCES, batch_schedule.positions_of(batch, named))
        except RecordGoneError:
            RECORDS_LOST.add(1, {names.MESSAGING_DESTINATION_TEMPLATE: EXPERIENCES.name})
            raise
        for met in self._around.bus.passed_over():
            if isinstance(met.record, Undecodable):
                await self._around.producer.send_dead_letter(
                    met, met.record.reason, met.record.detail, to=TRAINER_DEAD_LETTERS
                )
        return batch_schedule.groups_of(batch, named, fetched)

    async def _once_more(
        self, batch: BatchRecord, step: int, groups: Sequence[ExperienceGroup]
    ) -> tuple[list[StepGroup], list[ExperienceGroup]]:
        kept_from = await self._around.bus.beginning_offsets(EXPERIENCES)
        ranked = [
            group
            for group in choice.ranked(self._steps.records.earlier(), self._settings, step=step)
            if all(part.position and part.position.offset >= kept_from[part.position.partition] for part in group.parts)
        ]
        self._teaches = {g.task_id: self._teaches[g.task_id] for g in ranked if g.task_id in self._teaches}
        wanted = self._settings.replay_groups
        chosen: dict[str, ExperienceGroup] = {}
        left = [group for group in ranked if self._teaches.get(group.task_id, True)]
        while left and len(chosen) < wanted:
            some, left = left[: wanted - len(chosen)], left[wanted - len(chosen) :]
            fetched = await self._groups(batch, some)
            # Beside those of the batch, for advantages that compare with all of a step.
            taught = await asyncio.to_thread(teach, [*groups, *fetched], self._advantage)
            verdicts = dict(zip((group.task_id for group in some), taught[len(groups) :], strict=True))
            self._teaches |= verdicts
            chosen |= {group.task_id: group for group in fetched if verdicts[group.task_id]}
        return [group for group in ranked if group.task_id in chosen], list(chosen.values())

    async def _that_waited(
        self, batch: BatchRecord, step: int, groups: Sequence[ExperienceGroup]
    ) -> tuple[list[LeftOut], list[StepGroup], list[ExperienceGroup]]:
        # A step that is to wait, too, leaves out all that it has.
        before = choice.waiting(self._steps.records.earlier(), step=step)
        named = [group for record in before for group in record.groups]
        older = await self._again(batch, step, named)
        left = await self._left_out([*groups, *older])
        taught = await asyncio.to_thread(teach, choice.without([*groups, *older], left), self._advantage)
        if choice.has_to_wait(taught, self._settings, step=step, groups=len(groups), before=before):
            return choice.left_waiting(groups), [], []
        return left, named, older

    async def _left_out(self, groups: Sequence[ExperienceGroup]) -> list[LeftOut]:
        limited, greedy = self._settings.limited_sampling == "train", self._advantage.wants_greedy
        # It reads all sets of kept tokens, which can take seconds.
        return await asyncio.to_thread(
            choice.left_out, groups, self._bounds, train_limited=limited, wants_greedy=greedy
        )

    async def choose(
        self, due: batch_schedule.Due, step: int, groups: list[ExperienceGroup]
    ) -> tuple[StepBegun, list[ExperienceGroup], Sequence[TrainSample]]:
        """Return what is durable of the step that begins, the groups that it is trained on, and its examples."""
        batch, shown = due.batch, Chosen()
        named: list[StepGroup] = []
        older: list[ExperienceGroup] = []
        left: list[LeftOut] = []
        entries = batch_schedule.entries_to_train(batch) if due.skip is None else []
        if due.skip is None:
            if self._examples is not None:
                shown = await self._examples.chosen(seed=self._settings.seed, step=step)
            if self._settings.strategy == "priority":
                named, older = await self._once_more(batch, step, groups)
            if self._settings.strategy == "dynamic_sampling":
                left, named, older = await self._that_waited(batch, step, groups)
            else:
                left = await self._left_out([*groups, *older])
        chosen = StepBegun(
            trainer=self._steps.trainer,
            incarnation=self._around.incarnation,
            run=self._steps.run,
            model=self._around.model,
            step=step,
            batch_id=batch.batch_id,
            sequence=batch.sequence,
            next_offset=due.next_offset,
            seed=self._settings.seed,
            groups=[StepGroup(task_id=entry.task_id, parts=entry.parts) for entry in entries],
            left_out=[*left, *shown.left_out],
            replayed=named,
            demonstrations=shown.positions,
            examples=0 if self._examples is None else self._examples.count,
            skipped=due.skip,
        )
        begun = await self._steps.begin(chosen)
        if begun.replayed != named:
            older = await self._again(batch, step, begun.replayed)
        if begun.demonstrations != shown.positions:
            if self._examples is None:
                raise TrainingError(
                    f"step {step} was begun with demonstrations: set trainer.strategy to 'mix' until it is trained"
                )
            shown = await self._examples.at(begun.demonstrations)
        return begun, choice.without([*groups, *older], begun.left_out), shown.samples

    async def _again(self, batch: BatchRecord, step: int, named: list[StepGroup]) -> list[ExperienceGroup]:
        what = f"step {step} was begun with experiences of earlier batches, and cannot be trained as it was"
        return await self._present(batch, named, what)
