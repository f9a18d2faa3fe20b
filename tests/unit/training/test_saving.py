"""Checkpoints that cannot be written."""

from pathlib import Path

import pytest
import torch

from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy, note_told
from trinity_bus.training.errors import CheckpointError
from trinity_bus.training.saving import BackgroundSaver, Snapshot


def test_a_failed_write_is_told_in_one_line_by_its_future_and_to_whoever_saves_next(tmp_path: Path) -> None:
    weights = {"a": torch.zeros(2)}
    snapshot = Snapshot(
        progress=TrainingProgress(step=3),
        written_by=WrittenBy(dtype="float32"),
        weights=weights,
        state=weights,
        source=tmp_path,
        dtype=torch.float32,
        as_hf=False,
        keep=1,
    )
    directory = tmp_path / "checkpoints"
    directory.write_text("a file is in the way")
    saver = BackgroundSaver()
    written = saver.save(snapshot, directory)
    with pytest.raises(CheckpointError, match=r"the checkpoint of step 3 cannot be written to .*checkpoints: "):
        written.result()
    with pytest.raises(CheckpointError, match="step 3"):
        saver.wait()
    saver.close()


def test_a_note_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.write_text("a file is in the way")
    with pytest.raises(CheckpointError, match=r"checkpoints/\.told cannot be written: "):
        note_told(directory, TrainingProgress(step=3))
