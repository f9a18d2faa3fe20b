"""A trainer that publishes nothing: no versions, no explorers; see ``service``.

::

    start:  load the model -> load the newest checkpoint, of this run -> what was written on `steps`
    step:   its source says what it is made of -------------------------------------------------> steps
            train            (``training_loop``)
            those figures by token, of some groups ---------------------------------------------> token-figures
            its figures, and a line of `metrics.jsonl`, beside the checkpoints -----------------> steps
            checkpoint       (at each `checkpoint_interval`, and after the last step; written beside the next step)
    end:    after `total_steps`; without that, never

Sources: :class:`ExampleSteps` (demonstrations or preferences), :class:`ShadowSteps` (the steps of another trainer).

Killed at any instant and started again it goes on from its newest checkpoint, and takes the steps since as they were
written; their figures are told twice then, and the last ones count. A checkpoint that cannot be written
ends it, at the next one or at its end.

The steps of another trainer are trained once more, for a shadow as they are written, for a replay afterwards:

::

    open:   `steps` to its end: those of the other trainer, and those of this one
    wait:   until the other one has begun the step
    begin:  its record -> its experiences and examples, by their places on the log
            -> the same under this trainer's name -------------------------------------------> steps

Which run of the other trainer is followed is noted beside the checkpoints (``checkpoint.note_follows``): for a shadow
the newest when it begins. Nothing of the other trainer is written to, nobody is asked, nothing is held back for it.
Where its steps cannot be trained any more (records are gone, it has taken a step otherwise, or begun another run), this
one ends and says which; docs/replay.md has the rules.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Literal

from schemas import Position, StepBegun
from schemas.topic import Topic
from schemas.topics import BATCHES, DEMONSTRATIONS, EXPERIENCES, PREFERENCES, STEPS
from trinity_bus.bus import Bus, Reader
from trinity_bus.errors import RecordGoneError
from trinity_bus.health.process import mark_ready
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import Follows, TrainingProgress
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages import Advantage
from trinity_bus.training.ranks.followers import RankSource
from trinity_bus.training.stages import Stage
from trinity_bus.training.steps import choice
from trinity_bus.training.steps.packing import TrainSample
from workers.trainer.batch_schedule import groups_of, positions_of
from workers.trainer.engines import StartingPoint
from workers.trainer.step_log import Recorded, RecordedSteps, contradicted, first_trainable, gap
from workers.trainer.training_loop import StepInput, StepSource, Trained, TrainerContext, TrainingLoop, opened

METRICS: Final = "metrics.jsonl"


class ExampleSteps(StepSource):
    def __init__(self, around: TrainerContext) -> None:
        if around.examples is None:
            raise ValueError(f"{around.topic.name} has no examples")
        self._around = around
        self._examples = around.examples
        self._kind = "demonstrations" if around.topic is DEMONSTRATIONS else "preferences"

    async def open(self, progress: TrainingProgress) -> None:
        await self._examples.settle(progress.examples or self._around.steps.records.examples)

    async def begin(self, step: int) -> StepInput:
        shown = await self._examples.chosen(seed=self._around.trainer.seed, step=step)
        chosen = StepBegun(
            trainer=self._around.steps.trainer,
            incarnation=self._around.incarnation,
            run=self._around.steps.run,
            model=self._around.model,
            step=step,
            batch_id=f"{self._kind}-{step}",
            sequence=step,
            next_offset=0,
            seed=self._around.trainer.seed,
            left_out=shown.left_out,
            examples=self._examples.count,
            **{self._kind: shown.positions},
        )
        begun = await self._around.steps.begin(chosen)
        if (said := begun.demonstrations or begun.preferences) != shown.positions:
            shown = await self._examples.at(said)
        return StepInput(begun, examples=shown.samples)


class CheckpointSink:
    does: Literal["checkpointing"] = "checkpointing"

    def __init__(self, around: TrainerContext) -> None:
        self._around = around
        self._saving: Future[Path] | None = None

    async def trained(self, begun: StepBegun, step: Trained, *, last: bool) -> None:
        await asyncio.to_thread(self._write_line, begun, step)
        # Before a checkpoint has the step: killed in between, it is trained and told of again.
        around = self._around
        await around.steps.end(begun, step.metrics, step.seconds)
        if last or begun.step % around.trainer.checkpoint_interval == 0:
            await self.settled()
            as_hf = around.trainer.saves_as_hf(last=last)
            self._saving = await around.thread.call(
                lambda: around.engine.save_checkpoint(around.directory, step.progress, as_hf=as_hf)
            )

    def _write_line(self, begun: StepBegun, step: Trained) -> None:
        with (self._around.directory / METRICS).open("a") as lines:
            what = {"step": begun.step, "batch_id": begun.batch_id, "time": time.time()}
            lines.write(json.dumps({**what, **step.metrics}) + "\n")

    async def settled(self) -> None:
        if self._saving is not None:
            await asyncio.wrap_future(self._saving)


async def train_without_batches(
    stage: Stage,
    topic: Topic,
    make_source: Callable[[TrainerContext], StepSource],
    *,
    bus: Bus,
    ranks: RankSource,
    origin: StartingPoint | None = None,
) -> None:
    async with opened(stage, topic, bus=bus, ranks=ranks, origin=origin) as around:
        source = make_source(around)
        loop = TrainingLoop(around, source, CheckpointSink(around))
        mark_ready()
        await source.open(around.engine.progress)
        await loop.run()
        await loop.finish()


log = logging.getLogger(__name__)

_POLL_S = 1.0


class ShadowSteps(StepSource):
    """The steps of another trainer, whose checkpoints may be known to be in ``origin``, with its seed or another."""

    def __init__(
        self, around: TrainerContext, reader: Reader, *, origin: Path | None = None, seed: int | None = None
    ) -> None:
        self._around = around
        self._settings = around.trainer
        self._reader = reader
        self._origin = origin
        self._seed = seed
        self._wants_greedy = registry.make("advantage", Advantage, self._settings).wants_greedy
        self._theirs = RecordedSteps(self._settings.shadows)
        self._own = RecordedSteps(around.steps.trainer)
        self._run = ""
        self._trained = 0

    async def open(self, progress: TrainingProgress) -> None:
        self._trained = progress.step
        follows = checkpoint.read_follows(self._around.directory)
        async for received in self._reader.replay():
            self._theirs.take(received)
            self._own.take(received)
        while not (follows or self._theirs.run):
            await self._read()
        if follows is None:
            follows = Follows(trainer=self._theirs.trainer, run=self._theirs.run)
            checkpoint.note_follows(self._around.directory, follows)
        if follows.trainer != self._theirs.trainer:
            raise TrainingError(
                f"{self._around.directory} is of one that follows {follows.trainer}, not {self._theirs.trainer}: give "
                "this one its own TRINITY_BUS_TRAINER__CHECKPOINT_DIR"
            )
        self._run = follows.run
        self._compare()
        await self._ensure_kept(progress.step + 1)
        log.info("following %s from step %d on", self._theirs.trainer, progress.step + 1)

    async def wait(self, step: int) -> None:
        self._trained = step - 1
        while step not in self._theirs.of(self._run):
            if self._theirs.run != self._run:
                raise TrainingError(
                    f"{self._theirs.trainer} has begun another run: give this one an empty trainer.checkpoint_dir to "
                    "follow that"
                )
            await self._read()

    async def begin(self, step: int) -> StepInput:
        try:
            theirs = await self._record(self._theirs.of(self._run)[step])
            entries = [*theirs.groups, *theirs.replayed]
            fetched = await self._around.bus.fetch(EXPERIENCES, positions_of(theirs, entries))
            groups = groups_of(theirs, entries, fetched)
        except RecordGoneError as error:
            await self._ensure_kept(step)
            raise TrainingError(f"step {step} cannot be trained once more: {error}") from error
        shown = await self._examples(theirs)
        begun = await self._around.steps.begin(
            theirs.model_copy(
                update={
                    "trainer": self._around.steps.trainer,
                    "incarnation": self._around.incarnation,
                    "run": self._around.steps.run,
                    "seed": theirs.seed if self._seed is None else self._seed,
                    "follows": self._theirs.trainer,
                    "left_out": choice.retold(theirs.left_out, wants_greedy=self._wants_greedy),
                }
            )
        )
        return StepInput(begun, choice.without(groups, begun.left_out), shown)

    async def _record(self, said: Recorded) -> StepBegun:
        if said.unreadable:
            raise TrainingError(said.unreadable)
        (received,) = await self._around.bus.fetch(STEPS, [Position(partition=0, offset=said.offset)])
        if not isinstance(received.record, StepBegun):
            raise TrainingError(f"{received.place} was a step, and cannot be read any more")
        return received.record

    async def _examples(self, theirs: StepBegun) -> Sequence[TrainSample]:
        if theirs.next_offset:
            kind, places = BATCHES, theirs.demonstrations
        elif theirs.preferences:
            kind, places = PREFERENCES, theirs.preferences
        else:
            kind, places = DEMONSTRATIONS, theirs.demonstrations
        mixes = self._settings.strategy == "mix" and theirs.skipped is None
        if kind is not self._around.topic or (mixes and not places):
            wanted = "demonstrations beside it" if kind is self._around.topic else self._around.topic.name
            raise TrainingError(
                f"step {theirs.step} of {theirs.trainer} was made of {kind.name}, and trainer.loss="
                f"{self._settings.loss!r} with trainer.strategy={self._settings.strategy!r} learns from {wanted}"
            )
        return (await self._around.examples.at(places)).samples if self._around.examples and places else ()

    async def _read(self) -> None:
        for received in await self._reader.batch(_POLL_S):
            self._theirs.take(received)
            self._own.take(received)
        if self._run:
            self._compare()

    def _compare(self) -> None:
        own = self._own.of(self._around.steps.run)
        step = contradicted(own, self._theirs.of(self._run), self._trained)
        if step is not None:
            raise TrainingError(
                f"{self._theirs.trainer} has taken step {step} otherwise after it was trained on here: remove the "
                f"checkpoints of step {step} and later from {self._around.directory}, and start this one again"
            )

    async def _ensure_kept(self, first: int) -> None:
        newest = max(self._theirs.of(self._run), default=0)
        folders = [self._around.directory, *([] if self._origin is None else [self._origin])]
        await ensure_kept(
            self._around.bus,
            self._theirs,
            self._run,
            first=first,
            last=min(newest, self._settings.total_steps or newest),
            starts=[step for folder in folders for step in checkpoint.steps(folder)],
        )


async def ensure_kept(
    bus: Bus, known: RecordedSteps, run: str, *, first: int, last: int, starts: Iterable[int]
) -> None:
    """Refuse steps that cannot be trained once more, since what they need is gone; name the first that can."""
    steps, kept = known.of(run), await bus.beginning_offsets(EXPERIENCES)
    missing = gap(steps, first, last, kept)
    if missing is None:
        return
    can = first_trainable(steps, {0, *starts}, last, kept)
    told = "no later one can be" if can is None else f"the first that can still be is {can}"
    raise TrainingError(f"step {missing[0]} of {known.trainer} cannot be trained once more: {missing[1]}; {told}")
