"""The same weights give the same logits here and in transformers, and come out as they went in."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.fakes.tiny_trainer import ROPE, write_model
from trinity_bus.config import TrainerSettings
from trinity_bus.training import tensors
from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families import FAMILIES, ModelShape, read_shape
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron.model import StagedModel


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((family, *sizes), id=f"{family}, {name}")
        for family in FAMILIES
        for sizes, name in (((32, True), "tied"), ((61, False), "untied, odd vocabulary"))
    ],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, vocabulary, tied = request.param
    return write_model(tmp_path_factory.mktemp("parity") / "model", family=family, vocabulary=vocabulary, tied=tied)


@pytest.fixture(scope="module")
def loaded(folder: Path, layout: Layout) -> StagedModel:
    built = StagedModel(read_shape(folder), layout, torch.float32, TrainerSettings())
    built.load(folder)
    return built


def test_weights_come_out_as_they_went_in(loaded: StagedModel, folder: Path) -> None:
    exported = dict(loaded.tensors())
    original = load_file(folder / "model.safetensors")
    assert exported.keys() == original.keys()
    for name, tensor in exported.items():
        assert torch.equal(tensor, original[name]), name


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("vocabulary", [32, 61])
def test_shards_make_the_whole(ranks: int, vocabulary: int) -> None:
    shape = ModelShape(
        layers=1, hidden=8, heads=8, groups=4, head_dim=6, intermediate=16, vocabulary=vocabulary, max_positions=64,
        norm_epsilon=1e-6, rope_theta=1e4, tied=False,
        qk_norm=True, qkv_bias=True,
    )  # fmt: skip
    sizes: dict[str, list[tuple[int, ...]]] = {
        "decoder.layers.0.self_attention.linear_qkv.weight": [(48, 8), (24, 8), (24, 8)],
        "decoder.layers.0.self_attention.linear_qkv.bias": [(48,), (24,), (24,)],
        "decoder.layers.0.self_attention.linear_proj.weight": [(8, 48)],
        "decoder.layers.0.mlp.linear_fc1.weight": [(16, 8), (16, 8)],
        "decoder.layers.0.mlp.linear_fc2.weight": [(8, 16)],
        "decoder.layers.0.input_layernorm.weight": [(8,)],
        "output_layer.weight": [(vocabulary, 8)],
    }
    for name, parts_sizes in sizes.items():
        parts = [torch.randn(size) for size in parts_sizes]
        whole = tensors.merge(name, parts, shape, ranks)
        shards = [tensors.shard(name, whole, ranks, rank) for rank in range(ranks)]
        back = tensors.split(name, tensors.unshard(name, shards), shape)
        for part, original in zip(back, parts, strict=True):
            assert torch.equal(part, original), name


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2' cannot be trained here; llama, qwen2, qwen3, qwen3_moe can"),
        ({"model_type": ["qwen3"]}, "cannot be trained here"),
        ({"model_type": "llama", "mlp_bias": True}, "mlp_bias=True"),
        ({"model_type": "llama", "rope_parameters": {**ROPE["llama"], "low_freq_factor": 2.0}}, "low_freq_factor=2.0"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type='yarn'"),
        ({"hidden_size": "big"}, "not a Qwen3 configuration"),
        ({"hidden_size": "64"}, "hidden='64': Input should be a valid integer"),
        ({"num_hidden_layers": 2.5}, "layers=2.5: Input should be a valid integer"),
        ({"tie_word_embeddings": "false"}, "tied='false': Input should be a valid boolean"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "num_attention_heads=3 is no multiple of"),
        ({"model_type": "llama", "hidden_size": 33, "head_dim": None}, "hidden_size=33 is no multiple of"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters of full_attention"),
        ({"rope_parameters": "default"}, "rope_parameters='default' is no table"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type='linear'"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "llama3"}}, "low_freq_factor=None"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has .*sliding_attention"),
        ({"is_causal": False}, "is_causal=False"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"its weights are quantized \(fp8\)"),
        ({"compression_config": {"format": "int-quantized"}}, "its weights are quantized"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    folder = write_model(tmp_path / "m")
    edit(folder, **changes)
    with pytest.raises(ConversionError, match=message):
        read_shape(folder)


def test_older_configurations_spell_rope_differently(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    edit(folder, rope_parameters=None, rope_theta=1e6)
    assert read_shape(folder).rope_theta == 1e6


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_configuration_leaves_out_is_what_transformers_takes(family: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model(family).save_pretrained(tmp_path)
    whole = read_shape(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    assert read_shape(tmp_path) == whole
    ours = {"head_dim", "attention_bias", "rope_theta", "rope_scaling", "rms_norm_eps", "tie_word_embeddings"}
    edit(tmp_path, **dict.fromkeys([*ours, "quantization_config", "layer_types", "hidden_act"]))
    assert read_shape(tmp_path) == whole


def test_weights_in_several_files(tmp_path: Path, layout: Layout) -> None:
    folder = write_model(tmp_path / "m", seed=5)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: weights[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    built = StagedModel(read_shape(folder), layout, torch.float32, TrainerSettings())
    built.load(folder)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in built.tensors())
