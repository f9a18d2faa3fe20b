"""The order in which steps are saved, staged and announced, whatever takes long. The engine is a fake."""

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes.trainer_context import context_of
from trinity_bus.config import TrainerSettings
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.errors import CheckpointError
from workers.trainer.engines import EngineThread
from workers.trainer.training_loop import Trained
from workers.trainer.version_publisher import VersionPublisher


class Engine:
    """Writes each checkpoint in no time, or when it is told to."""

    progress = TrainingProgress()

    def __init__(self) -> None:
        self.writes_at_once = True
        self.written: Future[Path] = Future()
        self.saved = threading.Event()

    def save_checkpoint(self, directory: Path, _progress: TrainingProgress, *, as_hf: bool) -> "Future[Path]":
        del as_hf
        self.written = Future()
        if self.writes_at_once:
            self.written.set_result(directory)
        self.saved.set()
        return self.written


class Publisher(VersionPublisher):
    """Says what it was asked for, in order."""

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self.events: list[str] = []
        self.may_stage = asyncio.Event()
        self.told = asyncio.Event()

    async def stage(self, version: int) -> None:
        await self.may_stage.wait()
        self.events.append(f"staged {version}")

    async def announce(self, step: Trained, *, publish: bool) -> None:
        self.events.append(f"told {step.progress.step}{' of its version' if publish else ''}")
        self.told.set()


class Rig:
    def __init__(self, directory: Path, thread: EngineThread, tasks: asyncio.TaskGroup) -> None:
        self.engine = Engine()
        parts = dict.fromkeys(("rollback", "tensors", "publisher"))
        self.versions = Publisher(
            context_of(
                TrainerSettings(publish="durable", checkpoint_interval=4),
                directory=directory,
                thread=thread,
                engine=self.engine,
            ),
            **{**parts, "tasks": tasks},
        )


def trained(step: int) -> Trained:
    return Trained(TrainingProgress(step=step, version=step))


async def turns() -> None:
    """Give every task that can go on the chance to do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_checkpoint_that_is_written_faster_than_its_version_is_staged_waits_with_the_news(
    tmp_path: Path,
) -> None:
    async with EngineThread() as thread, asyncio.TaskGroup() as tasks:
        rig = Rig(tmp_path, thread, tasks)
        under_way = tasks.create_task(rig.versions.trained(trained(1), publish=True, last=False))
        assert await asyncio.to_thread(rig.engine.saved.wait, 10)
        await thread.call(lambda: None)
        await turns()
        rig.versions.may_stage.set()
        await under_way
        await rig.versions.settled()
    assert rig.versions.events == ["staged 1", "told 1 of its version"]


async def test_no_step_is_told_of_before_its_note_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noting, may_note = threading.Event(), threading.Event()

    def slow_note(_directory: Path, _progress: TrainingProgress) -> None:
        noting.set()
        assert may_note.wait(10)
        rig.versions.events.append("noted 5")

    monkeypatch.setattr(checkpoint, "note_told", slow_note)
    async with EngineThread() as thread, asyncio.TaskGroup() as tasks:
        rig = Rig(tmp_path, thread, tasks)
        rig.engine.writes_at_once = False
        await rig.versions.trained(trained(4), publish=False, last=False)
        under_way = tasks.create_task(rig.versions.trained(trained(5), publish=False, last=False))
        assert await asyncio.to_thread(noting.wait, 10)
        rig.engine.written.set_result(tmp_path)
        await turns()
        may_note.set()
        await under_way
        await rig.versions.settled()
    assert rig.versions.events == ["noted 5", "told 4", "told 5"]


async def test_a_checkpoint_that_cannot_be_written_ends_what_trains(tmp_path: Path) -> None:
    rigs: list[Rig] = []

    async def train() -> None:
        async with EngineThread() as thread, asyncio.TaskGroup() as tasks:
            rigs.append(rig := Rig(tmp_path, thread, tasks))
            rig.engine.writes_at_once = False
            await rig.versions.trained(trained(4), publish=False, last=False)
            rig.engine.written.set_exception(CheckpointError("No space left on device"))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as ended:
        await train()
    assert ended.group_contains(CheckpointError, match="No space left")
    assert rigs[0].versions.events == []
