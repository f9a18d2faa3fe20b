"""What is published, as the engine has it and as a checkpoint has it, and which settings go with an adapter alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fakes.experiences import make_group
from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.staging import Staging
from trinity_bus.weights.tensor_file import BASE, identity
from workers.preconditions import refusals
from workers.trainer.engines import PublishedTensors


def checksum(tensors: Any) -> str:
    return Staging(bucket_bytes=1 << 20, retain=1).stage(0, tensors).checksum


@pytest.mark.parametrize("rank", [0, 2])
def test_a_checkpoint_has_what_was_published(tmp_path: Path, rank: int) -> None:
    base = write_model(tmp_path / "model")
    settings = TrainerSettings(model_path=str(base), lora_rank=2, lora_alpha=6.0, adapter_rank=rank, learning_rate=1e-2)
    engine = TorchEngine(settings)
    published = PublishedTensors(engine, Settings(trainer=settings))
    engine.train_step([make_group()])
    kept = engine.save_checkpoint(tmp_path / "checkpoints", engine.progress).result()
    first = checksum(published.now())
    assert checksum(published.of_checkpoint(kept)) == first
    assert (kept / published.file).is_file()
    engine.train_step([make_group()])
    assert checksum(published.now()) != first
    assert checksum(published.of_checkpoint(kept)) == first
    with pytest.raises(CheckpointError, match="cannot be read"):
        list(published.of_checkpoint(tmp_path))
    engine.leave()


def test_an_adapter_says_what_it_adds_and_to_which_weights(tmp_path: Path) -> None:
    base, other = (write_model(tmp_path / name, seed=seed) for seed, name in enumerate(("model", "other")))
    settings = TrainerSettings(model_path=str(base), lora_rank=2, lora_alpha=6.0, adapter_rank=8, learning_rate=1e-2)
    engine = TorchEngine(settings)
    before = {name: tensor.clone() for name, tensor in engine.hf_tensors()}
    engine.train_step([make_group()])
    told = dict(PublishedTensors(engine, Settings(trainer=settings)).now())
    assert bytes(told.pop(BASE).tolist()) == identity(base) != identity(other)
    merged = dict(engine.hf_tensors())
    name = "model.layers.0.mlp.up_proj"
    a, b = (told[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    torch.testing.assert_close(before[f"{name}.weight"] + b @ a, merged[f"{name}.weight"])
    with pytest.raises(WeightTransferError, match="has no safetensors"):
        identity(tmp_path)
    engine.leave()


OBJECT = {"sync_method": "object", "object_url": "memory://there"}
WITHOUT: dict[str, dict[str, Any]] = {"mesh": {"adapter_rank": 0}, "synchronizer": {"sync_method": "checkpoint"}}


@pytest.mark.parametrize(
    ("service", "changes", "refusal"),
    [
        ("trainer", {}, None),
        ("explorer", {}, None),
        ("trainer", {"trainer": {"lora_rank": 16}}, "adapters of 1 to 8 dimensions"),
        ("trainer", {"trainer": {"lora_rank": 0}}, "trainer.lora_rank is 0"),
        ("trainer", {"synchronizer": {"sync_method": "checkpoint"}}, "set it to nccl or memory"),
        ("explorer", {"synchronizer": {"sync_method": "checkpoint"}}, "set it to nccl or memory"),
        ("trainer", {"trainer": {"lora_rank": 8, "stages": [{"stage": "a"}]}}, "leave trainer.stages empty"),
        ("trainer", {"synchronizer": OBJECT}, None),
        ("trainer", {"synchronizer": {"sync_method": "object"}}, "synchronizer.object_url"),
        ("explorer", {"synchronizer": OBJECT | {"object_url": "nothing://b"}}, "trinity-bus[objects]"),
        ("trainer", {"trainer": {"lora_rank": 8, "checkpoint_url": "nothing://b"}}, "trinity-bus[objects]"),
        ("explorer", {"explorer": {"engine_url": "http://there:1"}}, "a server takes versions from checkpoints"),
        ("explorer", WITHOUT | {"explorer": {"engine_router": "http://there:1"}}, "name the servers behind it"),
    ],
)
def test_settings_that_do_not_go_with_an_adapter_or_a_server_are_refused(
    service: str, changes: dict[str, dict[str, Any]], refusal: str | None
) -> None:
    given = {"mesh": {"model_path": "/m", "adapter_rank": 8}, "trainer": {"lora_rank": 8, "checkpoint_dir": "/c"}}
    given = {name: {**given.get(name, {}), **changes.get(name, {})} for name in (*given, *changes)}
    found = refusals(service, Settings(**given))
    assert len(found) == bool(refusal)
    assert all(refusal is not None and refusal in one for one in found)
