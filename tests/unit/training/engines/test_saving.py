"""Checkpoints that cannot be written."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from schemas import ExperienceGroup
from trinity_bus.config import TrainerSettings
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy, note_told
from trinity_bus.training.engines import saving
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.saving import BackgroundSaver, SavedState, Snapshot
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.tensor_file import write_tensors


def test_a_failed_write_is_told_in_one_line_by_its_future_and_to_whoever_saves_next(tmp_path: Path) -> None:
    weights = {"a": torch.zeros(2)}.items
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
    with pytest.raises(CheckpointError, match=r"checkpoints/\.told cannot be written: "):
        note_told(directory, TrainingProgress(step=3))


@pytest.mark.parametrize("engine", [MegatronEngine, TorchEngine])
@pytest.mark.parametrize("options", [{}, {"kl_coef": 0.1}, {"advantage": "gae"}], ids=["plain", "reference", "critic"])
def test_a_checkpoint_has_what_there_was_although_it_is_read_beside_the_next_step(
    *,
    engine: type[Any],
    options: dict[str, Any],
    group: Callable[..., ExperienceGroup],
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = engine(TrainerSettings(model_path=str(model_folder), learning_rate=1e-2, **options))
    trainer.train_step([group()])
    before = {name: tensor.clone() for name, tensor in trainer.hf_tensors()}
    moments = {name: tensor.clone() for name, tensor in trainer._optimizer_state()}
    step_waits, write, taken = Event(), write_tensors, trainer._saver.taken

    def late(*arguments: Any) -> int:
        assert step_waits.wait(60)
        return write(*arguments)

    def waiting() -> None:
        step_waits.set()
        taken()

    # Nothing is read until the next step has come to where it would change something.
    monkeypatch.setattr(saving, "write_tensors", late)
    monkeypatch.setattr(trainer._saver, "taken", waiting)
    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(trainer.save_checkpoint, tmp_path, trainer.progress).result()
        thread.submit(trainer.train_step, [group()]).result()
    folder = written.result()
    found = load_file(folder / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in before.items())
    state = SavedState(folder, "optimizer.")
    assert all(torch.equal(state[name], tensor) for name, tensor in moments.items())
    assert any(not torch.equal(tensor, before[name]) for name, tensor in trainer.hf_tensors())
