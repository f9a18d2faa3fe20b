"""The trainer beside the copying of its checkpoints: what each does when the other ends."""

import asyncio
import threading
import uuid
from pathlib import Path

import pytest
from pydantic import ValidationError

from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.errors import SupersededError
from trinity_bus.runtime.object_store import ObjectStore, ObjectStoreError
from trinity_bus.runtime.service import first_error
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.checkpoint.mirror import CheckpointMirror, CheckpointsThere
from trinity_bus.training.stages import Stage, stages_of
from workers.trainer import service
from workers.trainer.service import _mirrored

LIMIT_S = 60


def save(directory: Path, step: int) -> None:
    (checkpoint.begin(directory, step) / "model.safetensors").write_text(f"weights {step}")
    checkpoint.commit(directory, TrainingProgress(step=step), WrittenBy(dtype="torch.float32"), keep=3)


def there(stage: Stage) -> list[int]:
    assert stage.url is not None
    return [found.step for found in CheckpointsThere(stage.url).listed(verified=True)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    trainer = {"checkpoint_url": f"memory://{uuid.uuid4().hex}/", "stages": [{"stage": "only"}]}
    (made,) = stages_of(Settings.model_validate({"trainer": trainer}), tmp_path)
    assert made.url == f"{trainer['checkpoint_url']}only"
    made.directory.mkdir()
    return made


async def test_the_last_checkpoint_is_there_when_training_has_ended(stage: Stage) -> None:
    async with _mirrored(stage):
        save(stage.directory, 1)
    assert there(stage) == [1]


async def test_one_that_is_told_to_end_sends_its_last_checkpoint_first(stage: Stage) -> None:
    begun = asyncio.Event()

    async def train() -> None:
        async with _mirrored(stage):
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                save(stage.directory, 2)

    task = asyncio.create_task(train())
    await asyncio.wait_for(begun.wait(), LIMIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, LIMIT_S)
    assert there(stage) == [2]


async def test_one_that_fails_ends_at_once_with_its_own_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise ObjectStoreError("it is gone")

    async def train() -> None:
        async with _mirrored(stage):
            monkeypatch.setattr(ObjectStore, "write", gone)
            save(stage.directory, 1)
            raise RuntimeError("the engine fails")

    with pytest.raises(BaseExceptionGroup) as raised:
        await train()
    assert "the engine fails" in str(first_error(raised.value))


async def test_one_that_fails_ends_while_the_store_hangs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def hanging(*_: object) -> None:
        begun.set()
        over.wait()

    async def train() -> None:
        async with _mirrored(stage):
            monkeypatch.setattr(ObjectStore, "write", hanging)
            save(stage.directory, 1)
            await asyncio.to_thread(begun.wait)
            raise RuntimeError("the engine fails")

    monkeypatch.setattr(service, "_AT_ONCE_S", 0.1)
    with pytest.raises(BaseExceptionGroup) as raised:
        await asyncio.wait_for(train(), LIMIT_S)
    assert "the engine fails" in str(first_error(raised.value))
    over.set()


async def test_training_ends_when_another_trainer_has_the_place(stage: Stage, tmp_path: Path) -> None:
    async def train() -> None:
        async with _mirrored(stage):
            save(stage.directory, 1)
            assert stage.url is not None
            other = CheckpointMirror(tmp_path / "other", stage.url, keep=3)
            (tmp_path / "other").mkdir()
            await asyncio.to_thread(other.open)
            save(stage.directory, 2)
            await asyncio.Event().wait()

    with pytest.raises(SupersededError, match="CHECKPOINT_URL"):
        await asyncio.wait_for(train(), LIMIT_S)


async def test_without_a_url_nothing_is_copied(tmp_path: Path) -> None:
    (stage,) = stages_of(Settings(), tmp_path)
    async with _mirrored(stage):
        save(tmp_path, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000001"}


def test_a_url_is_no_folder_and_has_no_credentials() -> None:
    with pytest.raises(ValidationError, match=r"trainer\.checkpoint_url takes a URL"):
        TrainerSettings.model_validate({"checkpoint_dir": "s3://bucket/run"})
    with pytest.raises(ValidationError):
        TrainerSettings.model_validate({"checkpoint_url": "s3://key:secret@bucket"})
