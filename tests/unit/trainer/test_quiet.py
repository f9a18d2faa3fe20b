"""What becomes of the fetch of the next step when a step ends badly."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.trainer.test_step_records import begun
from trinity_bus.config import Settings
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import TrainingError
from workers.trainer.engine_thread import EngineThread
from workers.trainer.quiet import QuietTrainer, StepInput


class FakeSource:
    """Steps of nothing. What it fetches ahead never comes, and takes some turns to give up, as a connection does."""

    def __init__(self) -> None:
        self.fetching = asyncio.Event()
        self.left = False

    async def open(self, progress: TrainingProgress) -> None:
        pass

    async def wait(self, step: int) -> None:
        pass

    async def begin(self, step: int) -> StepInput:
        return StepInput(begun(step=step))

    async def look_ahead(self, _step: int) -> None:
        self.fetching.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            self.left = True


async def test_a_fetch_ahead_is_over_when_the_step_beside_it_fails(tmp_path: Path) -> None:
    source, loop = FakeSource(), asyncio.get_running_loop()

    def train_step(*_args: object, **_kwargs: object) -> None:
        asyncio.run_coroutine_threadsafe(source.fetching.wait(), loop).result()
        raise TrainingError("the card is gone")

    engine = cast("TrainingEngine", SimpleNamespace(progress=TrainingProgress(), train_step=train_step))
    async with EngineThread() as thread:
        trainer = QuietTrainer(Settings(), source, directory=tmp_path, thread=thread, engine=engine)
        with pytest.raises(TrainingError, match="the card is gone"):
            await trainer.run()
        assert source.left
