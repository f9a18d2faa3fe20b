"""Checkpoints that cannot be written; and an exported adapter as PEFT has it: vLLM's reader of adapters took the same
names and fields when it was tried. That training goes on with adapters is in ``test_conformance``.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.fakes.experiences import make_group
from trinity_bus.config import TrainerSettings
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy, note_told
from trinity_bus.training.engines import saving
from trinity_bus.training.engines.adapters import FOLDER, TARGETS, peft_names
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.engines.saving import BackgroundSaver, SavedState, Snapshot, export
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.errors import CheckpointError
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import model
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
    *, engine: type[Any], options: dict[str, Any], model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = engine(TrainerSettings(model_path=str(model_folder), learning_rate=1e-2, **options))
    trainer.train_step([make_group()])
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
        thread.submit(trainer.train_step, [make_group()]).result()
    folder = written.result()
    found = load_file(folder / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in before.items())
    state = SavedState(folder, "optimizer.")
    assert all(torch.equal(state[name], tensor) for name, tensor in moments.items())
    assert any(not torch.equal(tensor, before[name]) for name, tensor in trainer.hf_tensors())


def test_what_is_exported(model_folder: Path, layout: Layout, tmp_path: Path) -> None:
    settings = TrainerSettings(model_path=str(model_folder), lora_rank=4, lora_alpha=8.0, learning_rate=1e-3)
    engine = MegatronEngine(settings)
    engine.train_step([make_group()])
    folder = engine.save_checkpoint(tmp_path / "checkpoints", engine.progress).result()
    export(folder, tmp_path / "model", model_folder, settings)
    config = json.loads((tmp_path / "model" / FOLDER / "adapter_config.json").read_text())
    assert {"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "target_modules": list(TARGETS)}.items() <= config.items()
    assert config["base_model_name_or_path"] == str(model_folder)
    adapter = load_file(tmp_path / "model" / FOLDER / "adapter_model.safetensors")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    projections = {name.removesuffix(".weight"): weight.shape for name, weight in weights.items()}
    projections = {name: shape for name, shape in projections.items() if name.endswith(TARGETS)}
    expected: dict[str, tuple[int, ...]] = {}
    for name, (out, into) in projections.items():
        name_of_a, name_of_b = peft_names(name)
        expected |= {name_of_a: (4, into), name_of_b: (out, 4)}
    assert {name: tuple(tensor.shape) for name, tensor in adapter.items()} == expected
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in adapter


def test_beside_transformer_engine_adapters_take_megatrons_own_layers(
    model_folder: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for GPUs and not here: without adapters Megatron is asked for it in vain."""
    monkeypatch.setattr(model, "have_transformer_engine", lambda: True)
    with pytest.raises(ValueError, match="Please install TE"):
        MegatronEngine(TrainerSettings(model_path=str(model_folder)))
    settings = TrainerSettings(model_path=str(model_folder), lora_rank=4)
    assert MegatronEngine(settings).train_step([make_group()])["grad_norm"] > 0


@pytest.mark.parametrize(
    ("ranks", "refusal"),
    [
        ((0, 4), "was written with trainer.lora_rank=0, here 4: set TRINITY_BUS_TRAINER__LORA_RANK as it was"),
        ((4, 0), "was written with trainer.lora_rank=4, here 0"),
        ((4, 3), "was written with trainer.lora_rank=4, here 3"),
    ],
)
def test_a_checkpoint_with_other_adapters_is_refused(
    engine: Callable[..., RankEngine], ranks: tuple[int, int], refusal: str, tmp_path: Path
) -> None:
    written, ours = (engine(lora_rank=rank) for rank in ranks)
    written.save_checkpoint(tmp_path, written.progress).result()
    with pytest.raises(CheckpointError, match=refusal):
        ours.load_latest(tmp_path)
