"""What a trainer that publishes nothing tells of a step."""

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from schemas import StepEnded
from schemas.step import KEPT_STEPS
from schemas.topics import STEPS
from tests.support.fakes.log import FakeBus, FakeLog
from tests.support.fakes.trainer_context import context_of
from tests.unit.trainer.test_step_records import begun
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import TrainerSettings
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.engine import TrainingEngine
from workers.trainer.engines import EngineThread
from workers.trainer.figure_log import FigureLog
from workers.trainer.step_log import StepLog
from workers.trainer.training_loop import StepInput, StepSource, TrainingLoop
from workers.trainer.without_batches import CheckpointSink


class Once(StepSource):
    async def open(self, progress: TrainingProgress) -> None:
        pass

    async def begin(self, step: int) -> StepInput:
        return StepInput(begun(step=step, trainer="replay-1", follows="trainer-0"))


async def test_the_figures_of_a_step_are_on_the_log_before_its_checkpoint(tmp_path: Path) -> None:
    log, told_before_the_checkpoint = FakeLog(), []

    engine = cast("TrainingEngine", SimpleNamespace(progress=TrainingProgress()))

    def train_step(*_args: object, **_kwargs: object) -> dict[str, float]:
        engine.progress = TrainingProgress(step=1)
        return {"loss": 0.5, "trained_tokens": 3.0, "updates_skipped_in_a_row": 0.0}

    def save_checkpoint(*_args: object, **_kwargs: object) -> Future[Path]:
        told_before_the_checkpoint.extend(log.all(STEPS))
        done: Future[Path] = Future()
        done.set_result(tmp_path)
        return done

    engine.take_figures = list  # type: ignore[method-assign]
    engine.train_step, engine.save_checkpoint = train_step, save_checkpoint  # type: ignore[method-assign]
    producer = cast("Producer", FakeBus(log).producer())
    steps = StepLog("replay-1", "run-1", 0, bus=cast("Bus", None), producer=producer)
    async with EngineThread() as thread:
        around = context_of(
            TrainerSettings(total_steps=1, name="replay-1"),
            steps=steps,
            figures=FigureLog(cast("Bus", None)),
            directory=tmp_path,
            thread=thread,
            engine=engine,
        )
        trainer = TrainingLoop(around, Once(), CheckpointSink(around))
        await trainer.run()
        await trainer.finish()
    (told,) = told_before_the_checkpoint
    assert told.key == "replay-1/1/ended"
    ended = told.record
    assert isinstance(ended, StepEnded)
    assert (ended.trainer, ended.follows, ended.step, ended.metrics["loss"]) == ("replay-1", "trainer-0", 1, 0.5)


async def test_figures_of_old_steps_go_with_their_records() -> None:
    log = FakeLog()
    steps = StepLog("t", "r", 0, bus=cast("Bus", None), producer=cast("Producer", FakeBus(log).producer()))
    await steps.end(begun(step=KEPT_STEPS + 2), {}, 1.0)
    ended, old = log.all(STEPS)
    assert (ended.key, old.key, old.record) == (f"t/{KEPT_STEPS + 2}/ended", "t/2/ended", None)
