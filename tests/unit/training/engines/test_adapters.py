"""An exported adapter is as PEFT has it; vLLM's reader of adapters took the same names and fields when it was tried.

That training goes on with adapters is in ``test_conformance``.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from schemas import ExperienceGroup
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.adapters import FOLDER, TARGETS, peft_names
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.errors import CheckpointError
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import model


def test_what_is_exported(
    model_folder: Path, layout: Layout, group: Callable[..., ExperienceGroup], tmp_path: Path
) -> None:
    settings = TrainerSettings(model_path=str(model_folder), lora_rank=4, lora_alpha=8.0, learning_rate=1e-3)
    engine = MegatronEngine(settings)
    engine.train_step([group()])
    engine.export_hf(tmp_path / "model")
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
    model_folder: Path, layout: Layout, group: Callable[..., ExperienceGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for GPUs and not here: without adapters Megatron is asked for it in vain."""
    monkeypatch.setattr(model, "have_transformer_engine", lambda: True)
    with pytest.raises(ValueError, match="Please install TE"):
        MegatronEngine(TrainerSettings(model_path=str(model_folder)))
    settings = TrainerSettings(model_path=str(model_folder), lora_rank=4)
    assert MegatronEngine(settings).train_step([group()])["grad_norm"] > 0


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
