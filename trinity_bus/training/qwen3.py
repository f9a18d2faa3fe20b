"""Qwen3: a Hugging Face configuration as Megatron's, and the names and layouts of its tensors both ways.

This is the only place that knows how the two spell and lay out the same weights:

* *names*: :data:`_LAYER_NAMES` and :data:`_MODEL_NAMES`. Megatron's local layer spec and its Transformer Engine spec
  name two of the norms differently; both spellings are listed and only those of the model at hand are looked up;
* *attention*: Megatron joins query, key and value into one matrix, query group by query group: the group's query
  heads, its key head, its value head, then the next group;
* *MLP*: gate and up are one matrix, gate first; each tensor-parallel shard holds its part of both;
* *vocabulary*: padded with zero rows to a multiple of the tensor-parallel size, and cut again on the way out. Padding
  never gets a gradient (see ``logprobs``), so it stays zero.

Functions here take and give whole or sharded tensors and know no process groups.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it

from trinity_bus.training.errors import ConversionError, ParallelError

_LAYER_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "input_layernorm.weight": ("input_layernorm.weight",),
    "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight",),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight",),
    "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight",),
    "self_attention.linear_qkv.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight",),
    "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight",),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight",),
    "mlp.linear_fc1.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight",),
}
_MODEL_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "embedding.word_embeddings.weight": ("model.embed_tokens.weight",),
    "decoder.final_layernorm.weight": ("model.norm.weight",),
    "output_layer.weight": ("lm_head.weight",),
}
_LAYER: Final = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_QKV: Final = "linear_qkv.weight"
_GATE_UP: Final = "linear_fc1.weight"
_SPLIT_BY_COLUMN: Final = ("linear_proj.weight", "linear_fc2.weight")
_SPLIT_BY_ROW: Final = (_QKV, _GATE_UP, "word_embeddings.weight", "output_layer.weight")


@dataclass(frozen=True, slots=True)
class Qwen3Shape:
    """What ``config.json`` says about a Qwen3 model, as far as training needs it."""

    layers: int
    hidden: int
    heads: int
    groups: int
    """Key-value heads; each serves ``heads / groups`` query heads."""
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int
    norm_epsilon: float
    rope_theta: float
    tied: bool
    """The output layer is the embedding."""

    def layers_per_stage(self, pipeline_parallel: int) -> int:
        """Layers that each stage of a pipeline holds.

        Raises:
            ParallelError: They cannot be distributed evenly.
        """
        if self.layers % pipeline_parallel:
            raise ParallelError(
                f"pipeline_parallel={pipeline_parallel} does not divide the model's {self.layers} layers"
            )
        return self.layers // pipeline_parallel

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read ``config.json``.

        Raises:
            ConversionError: There is none, it is no Qwen3 model, or it uses something that is not implemented.
        """
        path = folder / "config.json"
        try:
            config = json.loads(path.read_bytes())
            return cls._from_config(config, path)
        except FileNotFoundError as error:
            raise ConversionError(f"{path} does not exist: give the folder of a Hugging Face model") from error
        except (KeyError, TypeError, ValueError) as error:
            raise ConversionError(f"{path} is not a Qwen3 configuration: {error!r}") from error

    @classmethod
    def _from_config(cls, config: dict[str, Any], path: Path) -> Self:
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        implemented = {
            "model_type": (config["model_type"], "qwen3"),
            "hidden_act": (config.get("hidden_act", "silu"), "silu"),
            "attention_bias": (config.get("attention_bias", False), False),
            "use_sliding_window": (config.get("use_sliding_window", False), False),
            "rope_type": (rope.get("rope_type", "default"), "default"),
        }
        for name, (found, expected) in implemented.items():
            if found != expected:
                raise ConversionError(f"{path}: {name}={found!r} cannot be trained here; {expected!r} can")
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return cls(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            groups=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            max_positions=int(config["max_position_embeddings"]),
            norm_epsilon=float(config["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or config["rope_theta"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """Return the vocabulary's size as Megatron holds it.

        Raises:
            ParallelError: The model cannot be split over so many ranks.
        """
        for name, size in (("heads", self.heads), ("key-value heads", self.groups), ("MLP width", self.intermediate)):
            if size % tensor_parallel:
                raise ParallelError(f"tensor_parallel={tensor_parallel} does not divide the model's {size} {name}")
        rows = -(-self.vocabulary // tensor_parallel)
        if rows * (tensor_parallel - 1) >= self.vocabulary:
            raise ParallelError(f"a vocabulary of {self.vocabulary} leaves ranks of {tensor_parallel} without a token")
        return rows * tensor_parallel


def hf_names(name: str) -> tuple[str, ...]:
    """Return the Hugging Face names of the tensors that make up a Megatron parameter, in :func:`merge`'s order.

    Raises:
        ConversionError: The parameter is not one of a Qwen3 model.
    """
    match = _LAYER.fullmatch(name)
    try:
        if match is None:
            return _MODEL_NAMES[name]
        return tuple(f"model.layers.{match[1]}.{part}" for part in _LAYER_NAMES[match[2]])
    except KeyError as error:
        raise ConversionError(f"Megatron's parameter {name!r} has no counterpart in a Qwen3 model") from error


def global_name(name: str, first_layer: int) -> str:
    """Return a parameter's name in the whole model, where this rank's layers begin with ``first_layer``."""
    match = _LAYER.fullmatch(name)
    return name if match is None else f"decoder.layers.{first_layer + int(match[1])}.{match[2]}"


def split_axis(name: str) -> int | None:
    """Return the axis along which a parameter is split over tensor-parallel ranks; None where each has all of it."""
    if name.endswith(_SPLIT_BY_COLUMN):
        return 1
    return 0 if name.endswith(_SPLIT_BY_ROW) else None


def merge(name: str, parts: list[torch.Tensor], shape: Qwen3Shape, tensor_parallel: int) -> torch.Tensor:
    """Hugging Face tensors to the whole Megatron tensor."""
    if name.endswith(_QKV):
        grouped = [part.reshape(shape.groups, -1, shape.hidden) for part in parts]
        return torch.cat(grouped, 1).reshape(-1, shape.hidden)
    if name.endswith(_GATE_UP):
        return torch.cat(parts)
    (tensor,) = parts
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return F.pad(tensor, (0, 0, 0, shape.padded_vocabulary(tensor_parallel) - shape.vocabulary))
    return tensor


def split(name: str, tensor: torch.Tensor, shape: Qwen3Shape) -> list[torch.Tensor]:
    """Return the whole Megatron tensor to Hugging Face tensors; the inverse of :func:`merge`."""
    if name.endswith(_QKV):
        queries = shape.heads // shape.groups * shape.head_dim
        grouped = tensor.reshape(shape.groups, -1, shape.hidden)
        parts = grouped.split([queries, shape.head_dim, shape.head_dim], 1)
        return [part.reshape(-1, shape.hidden) for part in parts]
    if name.endswith(_GATE_UP):
        return list(tensor.chunk(2))
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return [tensor[: shape.vocabulary]]
    return [tensor]


def shard(name: str, tensor: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """Return the part of a whole Megatron tensor that one tensor-parallel rank holds."""
    axis = split_axis(name)
    if axis is None or ranks == 1:
        return tensor
    if name.endswith(_GATE_UP):
        return torch.cat([half.chunk(ranks)[rank] for half in tensor.chunk(2)])
    return tensor.chunk(ranks, axis)[rank]


def unshard(name: str, shards: list[torch.Tensor]) -> torch.Tensor:
    """Return the whole Megatron tensor from its shards in the order of ranks; the inverse of :func:`shard`."""
    axis = split_axis(name)
    if axis is None or len(shards) == 1:
        return shards[0]
    if name.endswith(_GATE_UP):
        gates, ups = zip(*(part.chunk(2) for part in shards), strict=True)
        return torch.cat([*gates, *ups])
    return torch.cat(shards, axis)
