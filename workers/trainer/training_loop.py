"""The loop that trains: a source says what a step is made of, a sink what becomes of it.

::

    StepSource.wait --> begin --> the engine's step, in its thread --> StepSink.trained --> ... --> finish: export

    source                             sink
    batches (``batch_steps``)          versions are published and announced (``service``)
    examples (``without_batches``)     checkpoints, and records on ``steps`` (``without_batches``)
    another trainer's (the same)       the same

An engine whose updates are not finite again and again ends the loop, once its state is saved.

``TrainerContext`` is what one incarnation of a trainer has, from its engine to what it writes on the log.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from opentelemetry import trace
from opentelemetry.context import Context

from schemas import ExperienceGroup, StepBegun
from schemas.record import Metrics
from schemas.topic import Topic
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import SAMPLES_LEFT_OUT, TRAIN, TRAIN_STEP_DURATION, TRAINER_TIME, Occupancy
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.ranks.followers import RankSource, followers_of
from trinity_bus.training.stages import Stage
from trinity_bus.training.steps import choice
from trinity_bus.training.steps.choice import LEFT_OUT, REASONS
from trinity_bus.training.steps.packing import TrainSample
from trinity_bus.training.steps.token_figures import SampleFigures
from workers.trainer.engines import EngineThread, StartingPoint, load_engine
from workers.trainer.examples import ExampleLog, examples_of
from workers.trainer.figure_log import FigureLog
from workers.trainer.step_log import StepLog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerContext:
    settings: Settings
    # What the objective learns from
    topic: Topic
    # Of its checkpoints
    directory: Path
    bus: Bus
    producer: Producer
    thread: EngineThread
    engine: TrainingEngine
    steps: StepLog
    figures: FigureLog
    # None where it learns from none
    examples: ExampleLog | None
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def trainer(self) -> TrainerSettings:
        return self.settings.trainer

    @property
    def model(self) -> str:
        return self.settings.mesh.model


@contextlib.asynccontextmanager
async def opened(
    stage: Stage, topic: Topic, *, bus: Bus, ranks: RankSource, reach: int = 0, origin: StartingPoint | None = None
) -> AsyncIterator[TrainerContext]:
    """Provide what a trainer has, its engine at the newest checkpoint; what runs in threads ends soon afterwards.

    Args:
        reach: How many steps back a step may learn from once more.
        origin: Where it begins without a checkpoint in the directory, if not with the model.
    """
    settings, directory, identity = stage.settings, stage.directory, await bus.identity(topic)
    async with followers_of(settings.trainer.ranks, ranks) as followers, EngineThread() as thread:
        log.info("loading %s", settings.trainer.model_path)
        engine = await thread.call(lambda: load_engine(settings, directory, followers, identity, origin))
        log.info("training in %s on %s", str(engine.dtype).removeprefix("torch."), engine.device_type)
        try:
            async with bus.producer() as producer, FigureLog(bus) as figures:
                run, trained = checkpoint.run_name(directory), engine.progress.step
                steps = StepLog(stage.writer, run, trained, reach=reach, bus=bus, producer=producer)
                await steps.replay()
                yield TrainerContext(
                    settings=settings,
                    topic=topic,
                    directory=directory,
                    bus=bus,
                    producer=producer,
                    thread=thread,
                    engine=engine,
                    steps=steps,
                    figures=figures,
                    examples=await examples_of(settings.trainer, topic, engine.source, bus=bus, producer=producer),
                )
        finally:
            engine.interrupt()
            await thread.call(engine.leave)


_tracer = trace.get_tracer("workers.trainer")


@dataclass(frozen=True, slots=True)
class StepInput:
    # As it is durable on ``steps``
    begun: StepBegun
    groups: Sequence[ExperienceGroup] = ()
    examples: Sequence[TrainSample] = ()


@dataclass(frozen=True, slots=True)
class Trained:
    progress: TrainingProgress
    batch_id: str | None = None
    metrics: Metrics = field(default_factory=dict)
    seconds: float = 0.0


class StepSource(ABC):
    @abstractmethod
    async def open(self, progress: TrainingProgress) -> None:
        """Take in what there is, before the first step; it may wait."""

    async def wait(self, _step: int) -> None:
        """Return when it is known what a step is made of. It may be known from the beginning."""
        return

    @abstractmethod
    async def begin(self, step: int) -> StepInput:
        """Return what a step is made of, once it is durable that it begins."""


class StepSink(Protocol):
    @property
    def does(self) -> Literal["publishing", "checkpointing"]: ...

    async def trained(self, begun: StepBegun, step: Trained, *, last: bool) -> None:
        """Take a step that the engine has just made; the last one has to be durable."""
        ...

    async def settled(self) -> None:
        """Return when no checkpoint is being written."""
        ...


class TrainingLoop:
    def __init__(self, around: TrainerContext, source: StepSource, sink: StepSink) -> None:
        self._around = around
        self._settings = around.trainer
        # Nobody is to take a shadow's metrics for those of the model that is served.
        self._model = around.trainer.name if around.trainer.role == "shadow" else around.model
        self._source = source
        self._sink = sink
        self._engine = around.engine
        # Held while a step is trained or a version published: the two never mix
        self.stepping = asyncio.Lock()
        self.is_training = self.is_finished = False
        self._time = Occupancy("waiting_for_batch")
        TRAINER_TIME.watch(self._time)

    async def run(self) -> None:
        while not self._settings.is_done(self._engine.progress.step):
            await self._source.wait(self._engine.progress.step + 1)
            async with self.stepping:
                await self._step()

    async def finish(self) -> None:
        """Return when the last checkpoint is written, and the model is exported where it is to be."""
        await self._sink.settled()
        log.info("%d steps are trained", self._engine.progress.step)
        if (target := self._settings.export_dir) is not None:
            await self._around.thread.call(lambda: self._export(target))
            log.info("the trained model is in %s", target)
        self.is_finished = True

    def _export(self, target: Path) -> None:
        # Here, since it imports torch: this module is imported by who trains nothing.
        from trinity_bus.training.engines.saving import export

        folder = checkpoint.latest(self._around.directory)
        if folder is None:
            raise TrainingError(f"{self._around.directory} has no checkpoint, and so no model to export")
        export(folder, target, self._engine.source, self._settings)

    async def _step(self) -> None:
        began, number = time.perf_counter(), self._engine.progress.step + 1
        attributes: dict[str, str | int] = {
            names.RL_STEP: number,
            names.RL_MODEL: self._model,
            names.RL_TRAINER: self._settings.name,
        }
        with (
            self._time.unit("fetching") as now,
            _tracer.start_as_current_span("train step", context=Context(), attributes=attributes),
        ):
            taken = await self._source.begin(number)
            now.move("training")
            self.is_training = True
            try:
                metrics, by_token = await self._around.thread.call(lambda: self._train(taken))
            finally:
                self.is_training = False
            self._around.figures.offer(taken.begun, by_token)
            progress, seconds = self._engine.progress, time.perf_counter() - began
            step = Trained(progress, taken.begun.batch_id, metrics, seconds)
            step_trained(self._model, step=number, version=progress.version, seconds=seconds, metrics=metrics)
            log.info(
                "step %d, %s: loss %.6g, reward %.4g, %d tokens, %.2f s",
                number,
                taken.begun.batch_id,
                metrics.get("loss", 0.0),
                metrics.get("reward_mean", float("nan")),
                metrics["trained_tokens"],
                seconds,
            )
            now.move(self._sink.does)
            skipped = int(metrics["updates_skipped_in_a_row"])
            ends = skipped >= self._settings.max_skipped_updates
            await self._sink.trained(taken.begun, step, last=ends or self._settings.is_done(number))
            if ends:
                await self._sink.settled()
                raise TrainingError(
                    f"{skipped} updates in a row, the last in step {number}, were skipped because their loss or "
                    f"gradients were not finite; the state is saved in {self._around.directory}: lower "
                    "TRINITY_BUS_TRAINER__LEARNING_RATE, or look for broken log-probabilities"
                )

    def _train(self, taken: StepInput) -> tuple[Metrics, list[SampleFigures]]:
        begun = taken.begun
        metrics = self._engine.train_step(taken.groups, seed=begun.seed, examples=taken.examples)
        metrics |= choice.counts(begun.left_out)
        if begun.replayed:
            metrics["groups_replayed"] = float(len(begun.replayed))
        self._engine.progress = self._engine.progress.after(begun)
        return metrics, self._engine.take_figures()


def step_trained(model: str, *, step: int, version: int, seconds: float, metrics: Metrics) -> None:
    """Show a step's metrics until the next; ``seconds`` from the manifest to the new weights."""
    attributes = {names.RL_MODEL: model}
    TRAIN_STEP_DURATION.record(seconds, attributes)
    for reason in REASONS:
        # From the first step, or to a collector the first one would be no rise.
        SAMPLES_LEFT_OUT.add(int(metrics.get(f"{LEFT_OUT}/{reason}", 0.0)), {**attributes, names.RL_FLAW: reason})
    values = {**metrics, "step": float(step), "version": float(version)}
    for name, gauge in TRAIN.items():
        if name in values:
            gauge.set(values[name], attributes)
