"""A trainer that publishes nothing: no versions, no explorers; see ``service``.

::

    start:  load the model -> load the newest checkpoint, of this run -> what was written on `steps`
    step:   its source says what it is made of -------------------------------------------------> steps
            train            (``training_loop``)
            those figures by token, of some groups ---------------------------------------------> token-figures
            its figures, and a line of `metrics.jsonl`, beside the checkpoints -----------------> steps
            checkpoint       (at each `checkpoint_interval`, and after the last step; written beside the next step)
    end:    after `total_steps`; without that, never

Sources: ``offline`` (demonstrations or preferences), ``shadow`` (the steps of another trainer).

Killed at any instant and started again it goes on from its newest checkpoint, and takes the steps since as they were
written; their figures are told twice then, and the last ones count. A checkpoint that cannot be written
ends it, at the next one or at its end.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from schemas import StepBegun
from schemas.topic import Topic
from trinity_bus.bus import Bus
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.health.process import mark_ready
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.ranks.followers import RankSource, followers_of
from workers.trainer.engines import EngineThread, StartingPoint, load_engine
from workers.trainer.examples import ExampleLog, examples_of
from workers.trainer.figure_log import FigureLog
from workers.trainer.step_log import StepLog
from workers.trainer.training_loop import StepSource, Trained, TrainingLoop

METRICS: Final = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerContext:
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


class CheckpointSink:
    does: Literal["checkpointing"] = "checkpointing"

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        steps: StepLog,
        directory: Path,
        thread: EngineThread,
        engine: TrainingEngine,
    ) -> None:
        self._settings = settings
        self._steps = steps
        self._directory = directory
        self._thread = thread
        self._engine = engine
        self._saving: Future[Path] | None = None

    async def trained(self, begun: StepBegun, step: Trained, *, last: bool) -> None:
        await asyncio.to_thread(self._write_line, begun, step)
        # Before a checkpoint has the step: killed in between, it is trained and told of again.
        await self._steps.end(begun, step.metrics, step.seconds)
        if last or begun.step % self._settings.checkpoint_interval == 0:
            await self.settled()
            as_hf = self._settings.saves_as_hf(last=last)
            self._saving = await self._thread.call(
                lambda: self._engine.save_checkpoint(self._directory, step.progress, as_hf=as_hf)
            )

    def _write_line(self, begun: StepBegun, step: Trained) -> None:
        with (self._directory / METRICS).open("a") as lines:
            what = {"step": begun.step, "batch_id": begun.batch_id, "time": time.time()}
            lines.write(json.dumps({**what, **step.metrics}) + "\n")

    async def settled(self) -> None:
        if self._saving is not None:
            await asyncio.wrap_future(self._saving)


async def train_without_batches(
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
                loop = TrainingLoop(
                    settings,
                    source,
                    CheckpointSink(settings.trainer, steps=steps, directory=directory, thread=thread, engine=engine),
                    figures=figures,
                    directory=directory,
                    thread=thread,
                    engine=engine,
                )
                mark_ready()
                await source.open(engine.progress)
                await loop.run()
                await loop.finish()
        finally:
            engine.interrupt()
            await thread.call(engine.leave)
