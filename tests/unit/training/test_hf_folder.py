"""A folder's numbers are those of its model, or are not taken."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.config import TrainerSettings
from trinity_bus.training import tensors
from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families import FAMILIES, read_shape
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron.model import StagedModel
from trinity_bus.training.tensors import WEIGHTS, weights

type Tensors = dict[str, torch.Tensor]

NORM = "model.norm.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_names_of_a_model_are_those_that_transformers_writes(tmp_path: Path, family: str, *, tied: bool) -> None:
    folder = write_model(tmp_path / "m", family=family, tied=tied)
    assert tensors.folder_names(read_shape(folder)) == load_file(folder / WEIGHTS).keys()


def with_value(name: str, value: float) -> Callable[[Tensors], Tensors]:
    def change(own: Tensors) -> Tensors:
        changed = own[name].clone()
        changed.view(-1)[0] = value
        return {**own, name: changed}

    return change


REFUSED: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "fp8": (lambda own: {**own, DOWN: own[DOWN].to(torch.float8_e4m3fn)}, rf"type F8_E4M3: {DOWN}"),
    "int8": (lambda own: {**own, DOWN: own[DOWN].to(torch.int8)}, rf"type I8: {DOWN}"),
    "packed": (lambda own: {**own, DOWN: own[DOWN].to(torch.int32)}, rf"type I32: {DOWN}"),
    "a scale": (lambda own: {**own, f"{DOWN}_scale_inv": torch.ones(1)}, rf"takes: {DOWN}_scale_inv"),
    "a bias": (lambda own: {**own, "model.layers.0.mlp.down_proj.bias": torch.ones(32)}, r"takes: .*down_proj\.bias"),
    "a value head": (lambda own: {**own, "v_head.summary.weight": torch.ones(1)}, r"takes: v_head\.summary\.weight"),
    "a layer more": (lambda own: {**own, "model.layers.9.x": torch.ones(1)}, r"takes: model\.layers\.9"),
    "many": (lambda own: {**own, **{f"x.{i}": torch.ones(1) for i in range(9)}}, r"x\.4 and 4 more"),
    "another output layer": (lambda own: {**own, "lm_head.weight": torch.ones(2, 2)}, "lm_head.weight is not model"),
    "no prefix": (lambda own: {k.removeprefix("model."): v for k, v in own.items()}, r"lacks model\.embed_tokens"),
    "a norm cut off": (lambda own: {**own, NORM: own[NORM][:-1].clone()}, rf"{NORM}.*\(31,\).*\(32,\)"),
    "no norms": (lambda own: {k: v for k, v in own.items() if "norm.weight" not in k}, r"lacks model\.layers\.0"),
    "nan": (with_value(NORM, float("nan")), rf"{NORM} has numbers that are not finite"),
    "infinite": (with_value(DOWN, float("-inf")), rf"{DOWN} has numbers that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_the_model_is_refused_by_name(tmp_path: Path, layout: Layout, kind: str) -> None:
    change, message = REFUSED[kind]
    folder = write_model(tmp_path / "m")
    shape = read_shape(folder)
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)
    with pytest.raises(ConversionError, match=message):
        StagedModel(shape, layout, torch.float32, TrainerSettings()).load(folder)


def test_what_older_versions_kept_beside_the_weights_is_passed_over(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    own = load_file(folder / WEIGHTS)
    beside = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "lm_head.weight": own["model.embed_tokens.weight"].clone(),
    }
    save_file(own | beside, folder / WEIGHTS)
    assert torch.equal(weights(folder, read_shape(folder))(NORM), own[NORM])


@pytest.mark.parametrize("index", [[], {}, {"weight_map": [NORM]}, {"weight_map": {NORM: 3}}])
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: object) -> None:
    folder = write_model(tmp_path / "m")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    with pytest.raises(ConversionError, match="has no weight_map"):
        weights(folder, read_shape(folder))


def test_a_folder_without_weights_that_can_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="does not exist"):
        read_shape(tmp_path / "nowhere")
    folder = write_model(tmp_path / "m")
    (folder / WEIGHTS).write_bytes(b"not safetensors")
    with pytest.raises(ConversionError, match="cannot be read"):
        weights(folder, read_shape(folder))
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(ConversionError, match=r"pickled \(\*\.bin\) are not read"):
        weights(folder, read_shape(folder))
