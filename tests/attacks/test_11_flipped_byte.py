"""Attack 11: a byte of a checkpoint is another than was written: a disk, a copy, a memory.

Before: it was loaded, and trained on. Now it is found at load, and the checkpoint before it is offered.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.config import TrainerSettings
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.errors import CheckpointError


def write(directory: Path, step: int) -> Path:
    partial = checkpoint.begin(directory, step)
    (partial / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (partial / "optimizer.safetensors").write_bytes(b"moments" * 999)
    return checkpoint.commit(
        directory,
        TrainingProgress(step=step, sequence=step, batches_offset=7),
        WrittenBy(dtype="torch.float32"),
        keep=5,
    )


def load(folder: Path) -> None:
    checkpoint.read_progress(folder, WrittenBy(dtype="torch.float32"))
    checkpoint.verify(folder)


@given(data=st.data(), mask=st.integers(1, 255))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_byte_of_any_file_is_found(tmp_path: Path, data: st.DataObject, mask: int) -> None:
    directory = tmp_path / "checkpoints"
    if checkpoint.latest(directory) is None:
        write(directory, 1)
        write(directory, 2)
    folder = directory / "step-00000002"
    load(folder)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
    try:
        if path.name != checkpoint.PROGRESS:
            with pytest.raises(CheckpointError, match=rf"{path.name} is not what was written; .* step-00000001$"):
                load(folder)
        else:
            # White space between its fields says nothing.
            try:
                load(folder)
            except CheckpointError:
                return
            assert path.read_text().split() == whole.decode().split()
    finally:
        path.write_bytes(whole)


def test_a_number_that_was_changed_in_what_a_checkpoint_says_of_itself_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path, 2)
    path = folder / checkpoint.PROGRESS
    text = path.read_text()
    assert '"sequence": 2,' in text
    path.write_text(text.replace('"sequence": 2,', '"sequence": 3,'))
    with pytest.raises(CheckpointError, match=r"progress.json is not what was written"):
        load(folder)


def test_an_engine_does_not_load_it_and_the_one_before_it_is_named(tmp_path: Path) -> None:
    engine = TorchEngine(TrainerSettings(model_path=str(write_model(tmp_path / "model")), threads=1))
    directory = tmp_path / "checkpoints"
    for _ in range(2):
        engine.train_step([])
        engine.save_checkpoint(directory, engine.progress).result()
    for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
        path = directory / "step-00000002" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CheckpointError, match=rf"{name} is not what was written; remove it .* step-00000001"):
            engine.load_latest(directory)
        path.write_bytes(whole)
    assert engine.load_latest(directory) is not None
    # The oldest has none before it.
    damaged = directory / "step-00000001" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="there is none before it; remove it to begin anew"):
        checkpoint.verify(damaged.parent)
