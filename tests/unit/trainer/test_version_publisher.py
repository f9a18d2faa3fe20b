"""What the trainer tells of versions, new ones and those that it brings back. The engine and the log are fakes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from schemas import ModelVersion, StepTrained, VersionRefused
from tests.support.fakes.received import durable
from tests.support.fakes.trainer_context import context_of
from trinity_bus.config import Settings
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.weights.staging import Staging
from workers.trainer.engines import EngineThread
from workers.trainer.published_tensors import PublishedTensors
from workers.trainer.training_loop import Trained
from workers.trainer.version_publisher import VersionPublisher


class Engine:
    """Weights that say which step they are of."""

    def __init__(self) -> None:
        self.progress = TrainingProgress()

    def step(self, directory: Path, *, keep: int) -> None:
        step = self.progress.step + 1
        self.progress = TrainingProgress(step=step, version=step)
        partial = checkpoint.begin(directory, step)
        save_file(dict(self.hf_tensors()), partial / "model.safetensors")
        checkpoint.commit(directory, self.progress, WrittenBy(dtype="float32"), keep=keep)

    dtype = torch.bfloat16
    source: Path | None = None

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        # In another order than that of their names.
        for name in ("b", "a"):
            yield name, torch.full((3,), float(self.progress.step))


class Publisher:
    """Stages, and serves nobody."""

    method = "gloo"
    address = ("127.0.0.1", 1)

    def __init__(self) -> None:
        self.staging = Staging(bucket_bytes=1 << 20, retain=2)

    def admit(self, announced: ModelVersion) -> None:
        pass

    def keep(self, version: int) -> None:
        self.staging.keep(version)

    def stage(self, version: int, named_tensors: Iterator[tuple[str, torch.Tensor]], folder: Path | None) -> str:
        return self.staging.stage(version, named_tensors, folder).checksum

    def durable(self, version: int) -> None:
        self.staging.open(version)


class Log:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, _topic: object, _key: str, record: object) -> "asyncio.Future[None]":
        self.sent.append(record)
        return durable()


class Trainer:
    def __init__(self, directory: Path, thread: EngineThread) -> None:
        self.directory = directory
        self.engine, self.log, publisher = Engine(), Log(), Publisher()
        self.staging = publisher.staging
        parts: dict[str, Any] = {"rollback": None, "publisher": publisher, "tasks": None}
        parts["tensors"] = PublishedTensors(cast("Any", self.engine), Settings())
        around = context_of(
            directory=directory,
            thread=thread,
            engine=self.engine,
            producer=self.log,
            steps=SimpleNamespace(trainer="trainer-0/grpo"),
        )
        self.versions = VersionPublisher(around, **parts)

    async def step(self, *, keep: int = 3) -> None:
        self.engine.step(self.directory, keep=keep)
        await self.publish("batch", {"loss": 0.5}, 1.0)

    async def publish(self, *of_step: Any) -> None:
        await self.versions.stage(self.engine.progress.version)
        await self.versions.announce(Trained(self.engine.progress, *of_step), publish=True)


@pytest.fixture
async def trainer(tmp_path: Path) -> AsyncIterator[Trainer]:
    async with EngineThread() as thread:
        yield Trainer(tmp_path, thread)


async def test_a_version_comes_back_with_the_bytes_that_it_had(trainer: Trainer) -> None:
    for _ in range(3):
        await trainer.step()
    await trainer.versions.publish_again(1)
    first, *_, again = trainer.log.sent
    assert isinstance(again, StepTrained)
    assert (again.again, again.publish, again.version, again.step) == (True, True, 1, 1)
    assert {(one.trainer, one.writer) for one in trainer.log.sent} == {("trainer-0", "trainer-0/grpo")}
    assert {(one.dtype, one.source) for one in trainer.log.sent} == {("bfloat16", None)}
    assert again.checksum == first.checksum
    assert again.checkpoint == first.checkpoint
    assert 1 in trainer.staging.versions
    assert trainer.versions.published_version == 3


async def test_the_newest_version_is_at_hand(trainer: Trainer) -> None:
    await trainer.publish()
    await trainer.versions.publish_again(0)
    first, again = trainer.log.sent
    assert (again.version, again.again, again.checksum) == (0, True, first.checksum)


async def test_a_version_without_a_checkpoint_is_refused_with_those_that_have_one(trainer: Trainer) -> None:
    for _ in range(5):
        await trainer.step()
    await trainer.versions.publish_again(2)
    refused = trainer.log.sent[-1]
    assert isinstance(refused, VersionRefused)
    assert (refused.version, refused.available) == (2, [3, 4, 5])
    assert "keep_checkpoints" in refused.reason


async def test_the_checkpoint_of_a_version_that_was_brought_back_is_kept(trainer: Trainer) -> None:
    for _ in range(3):
        await trainer.step()
    await trainer.versions.publish_again(2)
    for _ in range(5):
        await trainer.step()
    assert checkpoint.steps(trainer.directory) == [2, 6, 7, 8]
    assert 2 in trainer.staging.versions
    await trainer.versions.publish_again(7)
    await trainer.step()
    assert checkpoint.steps(trainer.directory) == [7, 8, 9]


async def test_a_step_that_is_not_published_is_told(trainer: Trainer) -> None:
    trainer.engine.step(trainer.directory, keep=3)
    await trainer.versions.announce(Trained(trainer.engine.progress, "batch", {"loss": 0.5}, 1.0), publish=False)
    (step,) = trainer.log.sent
    assert (step.publish, step.step, step.batch_id, step.metrics["loss"]) == (False, 1, "batch", 0.5)
    assert trainer.versions.published_version == -1
