"""What one incarnation of a trainer has, from its engine to what it writes on the log; and how that is opened."""

import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from schemas.topic import Topic
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.training import checkpoint
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.ranks.followers import RankSource, followers_of
from trinity_bus.training.stages import Stage
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
