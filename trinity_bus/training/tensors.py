"""Names and layouts of a decoder's tensors, in Hugging Face's folders and in Megatron's model; folders themselves.

This is the only place that knows how the two spell and lay out the same weights. Llama, Qwen2 and Qwen3 spell them
alike; what a family does not have is never looked up:

* *names*: :data:`_LAYER_NAMES` and :data:`_MODEL_NAMES`. Megatron's local layer spec and its Transformer Engine spec
  name two of the norms differently; both spellings are listed and only those of the model at hand are looked up;
* *attention*: Megatron joins query, key and value into one matrix (and one bias), query group by query group: the
  group's query heads, its key head, its value head, then the next group;
* *MLP*: gate and up are one matrix, gate first; each tensor-parallel shard holds its part of both;
* *experts*: each is an MLP of its own in folders, and here too; a rank's model has its experts of a layer as a stack
  (see ``layers``), transformers' own model all of them (:func:`of_transformers`);
* *vocabulary*: padded with zero rows to a multiple of the tensor-parallel size, and cut again on the way out. Padding
  never gets a gradient (see ``logprobs``), so it stays zero.

A folder's numbers are taken as they stand, or not at all. :func:`weights` refuses, by name:

* a tensor that the model lacks, and one that no parameter of it takes: biases that the configuration denies, scales of
  weights in eight bits, a value head. Passed over are what older versions kept beside the weights, the frequencies of
  rotary positions, and an output layer that is the embedding once more;
* numbers that are none of their own (integers, eight bits): they are to be multiplied by scales, which are not known;
* numbers that are not finite;
* what cannot be read, or is no safetensors.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from safetensors import SafetensorError, safe_open

from trinity_bus.runtime.plain_files import within
from trinity_bus.training.checkpoint.folders import INDEX
from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families import ModelShape
from trinity_bus.weights.tensor_file import write_tensors

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


WEIGHTS: Final = "model.safetensors"
_TYPES: Final = ("F64", "F32", "F16", "BF16")
_PASSED_OVER: Final = ".rotary_emb.inv_freq"
_SHOWN: Final = 5


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Within the block, errors of a folder's files become ConversionError."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise ConversionError(f"the weights in {folder} cannot be read: {error}") from error


def weights(folder: Path, shape: ModelShape) -> Callable[[str], torch.Tensor]:
    """Look the tensors of a model up by name, in a folder that holds this model and nothing else."""
    with readable(folder):
        files = _opened(folder)
        wanted = folder_names(shape)
        if missing := wanted - files.keys():
            raise ConversionError(f"{folder} lacks {_told(missing)}")
        unknown = {name for name in files.keys() - wanted if not name.endswith(_PASSED_OVER)}
        if shape.tied and OUTPUT in unknown:
            embedding, output = (files[name].get_tensor(name) for name in (EMBEDDING, OUTPUT))
            if not torch.equal(embedding, output):
                raise ConversionError(
                    f"{folder}: config.json says tie_word_embeddings, and {OUTPUT} is not {EMBEDDING}"
                )
            unknown.remove(OUTPUT)
        if unknown:
            raise ConversionError(
                f"{folder} has what no parameter of this model takes: {_told(unknown)}: without it the model would be "
                "another one"
            )
        types = {name: files[name].get_slice(name).get_dtype() for name in wanted}
        if odd := {name for name, kind in types.items() if kind not in _TYPES}:
            kinds = ", ".join(sorted({types[name] for name in odd}))
            raise ConversionError(
                f"{folder} has weights of type {kinds}: {_told(odd)}: they are quantized, and mean nothing without "
                "their scales; give the model as it was before, or dequantize it"
            )

    def read(name: str) -> torch.Tensor:
        tensor: torch.Tensor = files[name].get_tensor(name)
        if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):
            raise ConversionError(f"{folder}: {name} has numbers that are not finite")
        return tensor

    return read


def _opened(folder: Path) -> dict[str, Any]:
    if (folder / INDEX).exists():
        content = json.loads(within(folder / INDEX, folder).read_bytes())
        files = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
            raise ValueError(f"{INDEX} has no weight_map")
        # A name that leads out of the folder is not followed.
        handles = {file: safe_open(within(folder / Path(file).name, folder), "pt") for file in set(files.values())}
        return {name: handles[file] for name, file in files.items()}
    if not (folder / WEIGHTS).exists() and any(folder.glob("*.bin")):
        raise ValueError(f"there is no {WEIGHTS}; files that are pickled (*.bin) are not read")
    opened = safe_open(within(folder / WEIGHTS, folder), "pt")
    return dict.fromkeys(opened.keys(), opened)  # type: ignore[no-untyped-call]  # not typed there


def _told(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more


def write_weights(folder: Path, weights: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> None:
    """Write weights into a folder that exists already, with an index that says which file of it holds them.

    Where there is none inference servers read every other file of tensors too, and a checkpoint has its optimizer's.
    """
    names: dict[str, str] = {}

    def named() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights():
            names[name] = WEIGHTS
            yield name, tensor

    size = write_tensors(folder / WEIGHTS, named, {"format": "pt"})
    index = {"metadata": {"total_size": size}, "weight_map": names}
    (folder / INDEX).write_text(json.dumps(index))
