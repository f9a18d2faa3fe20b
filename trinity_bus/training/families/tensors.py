"""Names and layouts of a decoder's tensors, in Hugging Face's folders and in Megatron's model, both ways.

This is the only place that knows how the two spell and lay out the same weights. Llama, Qwen2 and Qwen3 spell them
alike; what a family does not have is never looked up:

* *names*: :data:`_LAYER_NAMES` and :data:`_MODEL_NAMES`. Megatron's local layer spec and its Transformer Engine spec
  name two of the norms differently; both spellings are listed and only those of the model at hand are looked up;
* *attention*: Megatron joins query, key and value into one matrix (and one bias), query group by query group: the
  group's query heads, its key head, its value head, then the next group;
* *MLP*: gate and up are one matrix, gate first; each tensor-parallel shard holds its part of both;
* *experts*: each is an MLP of its own in folders, and here too; a rank's model has its experts of a layer as a stack
  (see ``experts``), transformers' own model all of them (:func:`of_transformers`);
* *vocabulary*: padded with zero rows to a multiple of the tensor-parallel size, and cut again on the way out. Padding
  never gets a gradient (see ``logprobs``), so it stays zero.
"""

import re
from collections.abc import Iterable
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it

from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families.shape import ModelShape

EMBEDDING: Final = "model.embed_tokens.weight"
OUTPUT: Final = "lm_head.weight"
_LAYER_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "input_layernorm.weight": ("input_layernorm.weight",),
    "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight",),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight",),
    "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight",),
    "self_attention.linear_qkv.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "self_attention.linear_qkv.bias": tuple(f"self_attn.{part}_proj.bias" for part in "qkv"),
    "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight",),
    "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight",),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight",),
    "mlp.linear_fc1.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight",),
    "mlp.router.weight": ("mlp.gate.weight",),
}
_MODEL_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "embedding.word_embeddings.weight": (EMBEDDING,),
    "decoder.final_layernorm.weight": ("model.norm.weight",),
    "output_layer.weight": (OUTPUT,),
}
_LAYER: Final = re.compile(r"decoder\.layers\.(\d+)\.(?:mlp\.experts\.(\d+)\.)?(.+)")
_STACK: Final = re.compile(r"(.+\.mlp\.experts)\.(linear_fc[12])")
_QKV: Final = ("linear_qkv.weight", "linear_qkv.bias")
_GATE_UP: Final = "linear_fc1.weight"
_SPLIT_BY_COLUMN: Final = ("linear_proj.weight", "linear_fc2.weight")
_SPLIT_BY_ROW: Final = (*_QKV, _GATE_UP, "word_embeddings.weight", "output_layer.weight")


def folder_names(shape: ModelShape) -> frozenset[str]:
    attention = ["weight", *(["bias"] if shape.qkv_bias else [])]
    parts = [f"self_attn.{part}_proj.{kind}" for part in "qkv" for kind in attention]
    parts += ["self_attn.o_proj.weight", "input_layernorm.weight", "post_attention_layernorm.weight"]
    parts += ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] if shape.qk_norm else []
    mlps = [f"mlp.experts.{expert}" for expert in range(shape.experts)] or ["mlp"]
    parts += [f"{mlp}.{part}_proj.weight" for mlp in mlps for part in ("gate", "up", "down")]
    parts += ["mlp.gate.weight"] if shape.experts else []
    ends = [EMBEDDING, "model.norm.weight", *([] if shape.tied else [OUTPUT])]
    return frozenset([*ends, *(f"model.layers.{layer}.{part}" for layer in range(shape.layers) for part in parts)])


def hf_names(name: str) -> tuple[str, ...]:
    # Of the tensors that make up a Megatron parameter, in the order of ``merge``
    match = _LAYER.fullmatch(name)
    try:
        if match is None:
            return _MODEL_NAMES[name]
        layer, expert, part = match.groups()
        if expert is None:
            return tuple(f"model.layers.{layer}.{hf_part}" for hf_part in _LAYER_NAMES[part])
        hf_parts = (hf_part.removeprefix("mlp.") for hf_part in _LAYER_NAMES[f"mlp.{part}"])
        return tuple(f"model.layers.{layer}.mlp.experts.{expert}.{hf_part}" for hf_part in hf_parts)
    except KeyError as error:
        raise ConversionError(f"Megatron's parameter {name!r} has no counterpart in a Hugging Face model") from error


def global_name(name: str, first_layer: int) -> str:
    match = _LAYER.fullmatch(name)
    return name if match is None else f"decoder.layers.{first_layer + int(match[1])}.{match[3]}"


def expert_names(name: str, experts: Iterable[int]) -> list[str]:
    """Return the names of the parameters of these experts that a stack is of; of what is none, nothing."""
    match = _STACK.fullmatch(name)
    return [] if match is None else [f"{match[1]}.{expert}.{match[2]}.weight" for expert in experts]


def of_transformers(name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return a parameter of transformers' own model as folders have it: each expert by itself, as views."""
    experts, _, kind = name.rpartition(".")
    if not experts.endswith(".mlp.experts"):
        return [(name, tensor)]
    if kind == "down_proj":
        return [(f"{experts}.{number}.down_proj.weight", one) for number, one in enumerate(tensor)]
    return [
        (f"{experts}.{number}.{part}.weight", half)
        for number, one in enumerate(tensor)
        for part, half in zip(("gate_proj", "up_proj"), one.chunk(2), strict=True)
    ]


def split_axis(name: str) -> int | None:
    """None where each tensor-parallel rank has all of it."""
    if name.endswith(_SPLIT_BY_COLUMN):
        return 1
    return 0 if name.endswith(_SPLIT_BY_ROW) else None


def merge(name: str, parts: list[torch.Tensor], shape: ModelShape, tensor_parallel: int) -> torch.Tensor:
    if name.endswith(_QKV):
        grouped = [part.reshape(shape.groups, -1, *part.shape[1:]) for part in parts]
        return torch.cat(grouped, 1).flatten(0, 1)
    if name.endswith(_GATE_UP):
        return torch.cat(parts)
    (tensor,) = parts
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return F.pad(tensor, (0, 0, 0, shape.padded_vocabulary(tensor_parallel) - shape.vocabulary))
    return tensor


def split(name: str, tensor: torch.Tensor, shape: ModelShape) -> list[torch.Tensor]:
    """Return the whole Megatron tensor to Hugging Face tensors; the inverse of :func:`merge`."""
    if name.endswith(_QKV):
        queries = shape.heads // shape.groups * shape.head_dim
        grouped = tensor.reshape(shape.groups, -1, *tensor.shape[1:])
        parts = grouped.split([queries, shape.head_dim, shape.head_dim], 1)
        return [part.flatten(0, 1) for part in parts]
    if name.endswith(_GATE_UP):
        return list(tensor.chunk(2))
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return [tensor[: shape.vocabulary]]
    return [tensor]


def shard(name: str, tensor: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
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
