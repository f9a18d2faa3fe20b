"""A trainer that publishes nothing: no versions, no explorers; see ``service``.

::

    start:  load the model -> load the newest checkpoint, of this run -> what was written on `steps`
    step:   its source says what it is made of -------------------------------------------------> steps
            train            (a thread; meanwhile its source fetches what it can of the next step)
            its figures ----------------------------------------------------------------------------> steps
            those by token, of some groups ----------------------------------------------------------> token-figures
                (and a line of `metrics.jsonl`, beside the checkpoints)
            checkpoint       (at each `checkpoint_interval`, and after the last step; written beside the next step)
    end:    after `total_steps`; without that, never

Sources: ``offline`` (demonstrations or preferences), ``shadow`` (the steps of another trainer).

Killed at any instant and started again it goes on from its newest checkpoint, and takes the steps since as they were
written; their figures are told twice then, and the last ones count. A checkpoint that cannot be written
ends it, at the next one or at its end.
"""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from opentelemetry import trace
from opentelemetry.context import Context

from schemas import ExperienceGroup, StepBegun
from schemas.record import Metrics
from schemas.topic import Topic
from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.health.process import mark_ready
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import TRAINER_TIME
from trinity_bus.telemetry.occupancy import Occupancy
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.packing import TrainSample
from trinity_bus.training.ranks import RankSource, followers_of
from trinity_bus.training.token_figures import SampleFigures
from workers.trainer.engine_thread import EngineThread
from workers.trainer.engines import StartingPoint, load_engine
from workers.trainer.errors import diverged
from workers.trainer.examples import ExampleLog, examples_of
from workers.trainer.figure_log import FigureLog
from workers.trainer.observations import of_record, step_trained
from workers.trainer.step_log import StepLog

log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.trainer")

METRICS: Final = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class StepInput:
    # As it is durable on ``steps``
    begun: StepBegun
    groups: Sequence[ExperienceGroup] = ()
    examples: Sequence[TrainSample] = ()


class StepSource(Protocol):
    async def open(self, progress: TrainingProgress) -> None:
        """Take in what there is, before the first step; it may wait."""
        ...

    async def wait(self, step: int) -> None:
        """Return when it is known what a step is made of."""
        ...

    async def begin(self, step: int) -> StepInput:
        """Return what a step is made of, once it is durable that it begins."""
        ...

    async def look_ahead(self, step: int) -> None:
        """Fetch what is there already of a step that is to come, while the one before it is trained."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerContext:
    """What a source has of the trainer."""

    settings: Settings
    # What the objective learns from
    topic: Topic
    # Of its checkpoints
    directory: Path
    # That training began with
    model: Path
    steps: StepLog
    # None where it learns from none
    examples: ExampleLog | None
    bus: Bus
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)


class QuietTrainer:
    def __init__(
        self,
        settings: Settings,
        source: StepSource,
        *,
        steps: StepLog,
        figures: FigureLog,
        directory: Path,
        thread: EngineThread,
        engine: TrainingEngine,
    ) -> None:
        self._settings = settings.trainer
        # Nobody is to take a shadow's figures for those of the model that is served.
        self._model = settings.trainer.name if settings.trainer.role == "shadow" else settings.mesh.model
        self._source = source
        self._steps = steps
        self._figures = figures
        self._directory = directory
        self._thread = thread
        self._engine = engine
        self._saving: Future[Path] | None = None
        self._time = Occupancy("waiting_for_batch")
        TRAINER_TIME.watch(self._time)

    async def run(self) -> None:
        mark_ready()
        await self._source.open(self._engine.progress)
        while not self._settings.is_done(self._engine.progress.step):
            await self._source.wait(self._engine.progress.step + 1)
            await self._step()
        await self._saved()
        log.info("%d steps are trained", self._engine.progress.step)
        if (target := self._settings.export_dir) is not None:
            await self._thread.call(lambda: self._engine.export_hf(target))
            log.info("the trained model is in %s", target)

    async def _step(self) -> None:
        began, step = time.perf_counter(), self._engine.progress.step + 1
        attributes: dict[str, str | int] = {
            names.RL_STEP: step,
            names.RL_MODEL: self._model,
            names.RL_TRAINER: self._settings.name,
        }
        with (
            self._time.unit("fetching") as now,
            _tracer.start_as_current_span("train step", context=Context(), attributes=attributes),
        ):
            taken = await self._source.begin(step)
            now.move("training")
            metrics, by_token = await self._train_and_look_ahead(taken)
            self._figures.offer(taken.begun, by_token)
            seconds = time.perf_counter() - began
            # Before a checkpoint has the step: killed in between, it is trained and told of again.
            await self._steps.end(taken.begun, metrics, seconds)
            progress = self._engine.progress
            now.move("checkpointing")
            skipped = int(metrics["updates_skipped_in_a_row"])
            ends = skipped >= self._settings.max_skipped_updates
            last = ends or self._settings.is_done(step)
            if last or step % self._settings.checkpoint_interval == 0:
                await self._save(last=last)
            if ends:
                await self._saved()
                raise diverged(skipped, step, self._directory)
            step_trained(self._model, step=step, version=progress.version, seconds=seconds, metrics=metrics)
            log.info(
                "step %d, %s: loss %.6g, %d tokens, %.2f s",
                *(step, taken.begun.batch_id, metrics.get("loss", 0.0), metrics["trained_tokens"], seconds),
            )

    async def _train_and_look_ahead(self, taken: StepInput) -> tuple[Metrics, list[SampleFigures]]:
        step = taken.begun.step
        if self._settings.is_done(step):
            return await self._thread.call(lambda: self._train(taken))
        ahead = asyncio.create_task(self._source.look_ahead(step + 1))
        try:
            trained = await self._thread.call(lambda: self._train(taken))
            await ahead
        finally:
            ahead.cancel()
            # It has connections and perhaps an error of its own: neither may be left behind.
            await asyncio.gather(ahead, return_exceptions=True)
        return trained

    def _train(self, taken: StepInput) -> tuple[Metrics, list[SampleFigures]]:
        begun = taken.begun
        metrics = self._engine.train_step(taken.groups, seed=begun.seed, examples=taken.examples)
        metrics |= of_record(begun)
        self._engine.progress = counted(self._engine.progress, begun)
        with (self._directory / METRICS).open("a") as lines:
            what = {"step": begun.step, "batch_id": begun.batch_id, "time": time.time()}
            lines.write(json.dumps({**what, **metrics}) + "\n")
        return metrics, self._engine.take_figures()

    async def _save(self, *, last: bool) -> None:
        await self._saved()
        as_hf = self._settings.saves_as_hf(last=last)
        self._saving = await self._thread.call(
            lambda: self._engine.save_checkpoint(self._directory, self._engine.progress, as_hf=as_hf)
        )

    async def _saved(self) -> None:
        if self._saving is not None:
            await asyncio.wrap_future(self._saving)


def counted(progress: TrainingProgress, begun: StepBegun) -> TrainingProgress:
    """Return the progress of an engine that has made a step, with what only its record knows. Pure."""
    after = progress.model_copy(
        update={"batches_offset": begun.next_offset, "sequence": begun.sequence, "examples": begun.examples}
    )
    return after if begun.skipped is None else after.passed_over(begun.batch_id, begun.skipped)


async def train_quietly(
    settings: Settings,
    topic: Topic,
    make_source: Callable[[TrainerContext], StepSource],
    *,
    directory: Path,
    writer: str,
    bus: Bus,
    ranks: RankSource,
    origin: StartingPoint | None = None,
) -> None:
    """Run one incarnation; without a checkpoint in the directory it begins at ``origin``, or else with the model."""
    identity = await bus.identity(topic)
    async with followers_of(settings.trainer.ranks, ranks) as followers, EngineThread() as thread:
        engine = await thread.call(lambda: load_engine(settings, directory, followers, identity, origin))
        try:
            async with bus.producer() as producer, FigureLog(bus) as figures:
                steps = StepLog.of(writer, directory, engine.progress.step, bus=bus, producer=producer)
                await steps.replay()
                examples = await examples_of(settings.trainer, topic, engine.source, bus=bus, producer=producer)
                around = TrainerContext(
                    settings=settings,
                    topic=topic,
                    directory=directory,
                    model=engine.source,
                    steps=steps,
                    examples=examples,
                    bus=bus,
                )
                source = make_source(around)
                trainer = QuietTrainer(
                    settings,
                    source,
                    steps=steps,
                    figures=figures,
                    directory=directory,
                    thread=thread,
                    engine=engine,
                )
                await trainer.run()
        finally:
            engine.interrupt()
            await thread.call(engine.leave)
