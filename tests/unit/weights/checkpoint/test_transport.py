import fcntl
import json
import os
import struct
import threading
from pathlib import Path

import pytest
import torch

from schemas import ModelVersion
from tests.support.faults.transfers import announcement, assert_takes, saved, settled
from tests.support.faults.transfers import weights_of as model
from tests.support.narrowing import some
from trinity_bus.training import checkpoint
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.checkpoint import CheckpointPublisher
from trinity_bus.weights.errors import TensorFileError
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.tensor_file import TensorFile
from trinity_bus.weights.transport import source_of

BUCKET = 1 << 12


class Trainer:
    """Writes checkpoints and publishes them, as the trainer's service does."""

    def __init__(self, directory: Path, *, keep: int = 2, dtype: str | None = None) -> None:
        self.directory = directory
        self.keep = keep
        self.publisher = CheckpointPublisher(directory, bucket_bytes=BUCKET, keep=keep, dtype=dtype)

    def save(self, step: int, weights: dict[str, torch.Tensor]) -> Path:
        return saved(self.directory, step, weights, self.keep)

    def publish(self, step: int, weights: dict[str, torch.Tensor]) -> ModelVersion:
        folder = self.save(step, weights)
        return announcement(self.publisher, step, self.publisher.stage(step, weights.items()), "a", folder=folder)


def read(receiver: WeightReceiver, announced: ModelVersion) -> TransferProgress:
    receiver.start(source_of(announced, "a", 5))
    return settled(receiver)


def test_versions_are_read_in_the_agreed_order_with_the_checksum_of_every_other_way(tmp_path: Path) -> None:
    trainer, receiver = Trainer(tmp_path), WeightReceiver()
    sender = WeightServer(bucket_bytes=BUCKET, method="gloo")
    for step in range(3):
        announced = trainer.publish(step, model(step))
        assert announced.checksum == sender.stage(step, model(step).items())
        progress = read(receiver, announced)
        assert progress.checksum == announced.checksum
        assert_takes(receiver, model(step))
    sender.close()


def test_what_is_read_is_converted_as_what_is_sent(tmp_path: Path) -> None:
    receiver = WeightReceiver()
    read(receiver, Trainer(tmp_path, dtype="bfloat16").publish(0, model(0)))
    wanted = {name: t.bfloat16() if t.is_floating_point() else t for name, t in model(0).items()}
    assert_takes(receiver, wanted)


def test_a_checkpoint_that_is_being_read_is_kept_until_the_next_one(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, keep=1)
    first = trainer.save(0, model(0))
    with checkpoint.held(first), checkpoint.held(first):
        second = trainer.save(1, model(1))
        assert first.exists()
        assert checkpoint.latest(tmp_path) == second
    trainer.save(2, model(2))
    assert not first.exists()
    assert not second.exists()


def test_a_checkpoint_that_is_gone_or_going_is_refused_and_the_newest_can_be_had(tmp_path: Path) -> None:
    trainer, receiver = Trainer(tmp_path, keep=1), WeightReceiver()
    gone = trainer.publish(0, model(0))
    newest = trainer.publish(1, model(1))
    failed = read(receiver, gone)
    assert failed.error.startswith("VersionGoneError")
    receiver.cancel()
    with (Path(str(newest.checkpoint)) / checkpoint.PROGRESS).open() as removing:
        fcntl.flock(removing, fcntl.LOCK_EX)
        assert "being removed" in read(receiver, newest).error
        receiver.cancel()
    read(receiver, newest)
    assert_takes(receiver, model(1))


def test_a_folder_that_vanishes_as_it_is_opened_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Trainer(tmp_path).save(0, model(0))
    original = fcntl.flock

    def remove_first(lock: int, how: int) -> None:
        folder.rename(tmp_path / "elsewhere")
        original(lock, how)

    monkeypatch.setattr("trinity_bus.training.checkpoint.folders.fcntl.flock", remove_first)
    with pytest.raises(CheckpointError, match="is gone"), checkpoint.held(folder):
        pass


def test_other_bytes_than_were_published_are_caught(tmp_path: Path) -> None:
    trainer, receiver = Trainer(tmp_path), WeightReceiver()
    announced = trainer.publish(0, model(0))
    path = Path(str(announced.checkpoint)) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "have digest" in read(receiver, announced).error
    receiver.cancel()
    # A file that ends too early is an error, not a fault of memory.
    path.write_bytes(data[:-1000])
    assert read(receiver, announced).error.startswith("TensorFileError")
    receiver.cancel()
    path.write_bytes(b"")
    assert "not a safetensors file" in read(receiver, announced).error


@pytest.mark.parametrize("folder", ["", "relative/step-00000001"])
def test_an_announcement_without_a_folder_is_refused(tmp_path: Path, folder: str) -> None:
    announced = Trainer(tmp_path).publish(0, model(0)).model_copy(update={"checkpoint": folder})
    assert "names no checkpoint folder" in read(WeightReceiver(), announced).error


def test_a_reader_stops_when_it_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = Trainer(tmp_path).publish(0, model(0))
    reading, cancelled = threading.Event(), threading.Event()
    original = TensorFile.read_part

    def wait_first(self: TensorFile, name: str, offset: int, place: memoryview) -> None:
        reading.set()
        cancelled.wait(10)
        original(self, name, offset, place)

    monkeypatch.setattr(TensorFile, "read_part", wait_first)
    receiver = WeightReceiver()
    receiver.start(source_of(announced, "a", 5))
    transfer = some(receiver._transfer)
    assert reading.wait(10)
    receiver.cancel()
    cancelled.set()
    while not transfer.over:
        pass
    assert "cancelled" in transfer.progress.error
    # It holds nothing any more.
    with (Path(str(announced.checkpoint)) / checkpoint.PROGRESS).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_published_versions_go_with_their_checkpoints_but_for_what_is_kept_or_was_published_again(
    tmp_path: Path,
) -> None:
    trainer, published = Trainer(tmp_path, keep=1), tmp_path / "published"
    for step in range(3):
        trainer.publish(step, model(step))
    assert [path.name for path in published.iterdir()] == ["00000002.json"]
    trainer.publisher.keep(2)
    trainer.publish(3, model(3))
    assert (published / "00000002.json").exists()
    trainer.publisher.stage(1, model(1).items())
    trainer.publisher.keep(1)
    trainer.publish(4, model(4))
    assert sorted(path.stem for path in published.iterdir()) == ["00000001", "00000004"]


@pytest.mark.parametrize(
    "table",
    [
        [],
        {"w": {"dtype": "F32", "shape": [2]}},
        {"w": {"dtype": "object", "shape": [2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
    ],
)
def test_a_table_that_is_wrong_is_refused(tmp_path: Path, table: object) -> None:
    path = tmp_path / "model.safetensors"
    text = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(TensorFileError), TensorFile(path) as file:
        file.meta("w")


def test_a_pipe_that_nobody_writes_to_is_no_file_of_tensors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(OSError, match="seek"):
        TensorFile(tmp_path / "model.safetensors")
