"""The model families, and how the ``config.json`` of each is read.

A family says which of its configurations it implements, and refuses every other by name: a model that is trained with
one of its parts left out would learn something else, silently. Names and layouts of tensors are the same for all
families that there are so far, see ``tensors``. A family more is an entry of :data:`FAMILIES`; the tests of parity with
transformers take it up from there.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from trinity_bus.training.errors import ConversionError

type Size = Annotated[int, Field(ge=1, le=1 << 31)]
type Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(strict=True))
class ModelShape:
    """A decoder with RMS norms, rotary positions, grouped-query attention, and SwiGLU MLPs: one a layer, or experts."""

    layers: Size
    hidden: Size
    heads: Size
    # Key-value heads; each serves ``heads / groups`` query heads
    groups: Size
    head_dim: Size
    # Width of a layer's MLP; where there are experts, of each of them
    intermediate: Size
    vocabulary: Size
    max_positions: Size
    norm_epsilon: Positive
    rope_theta: Positive
    # The output layer is the embedding
    tied: bool
    # Queries and keys are normalized in each head
    qk_norm: bool
    # The projections to queries, keys and values have biases
    qkv_bias: bool
    # Low frequencies of the rotary positions are divided by this, as in Llama 3.1; None: positions are not scaled.
    llama3_rope_factor: Positive | None = None
    # In each layer, of which a router chooses some for each token; 0: the model is dense
    experts: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    experts_per_token: Annotated[int, Field(ge=0)] = 0
    # The weights of the chosen experts add up to 1
    normalized_routing: bool = True

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """Return the vocabulary's size as Megatron holds it: a multiple of the ranks that it is split over."""
        return -(-self.vocabulary // tensor_parallel) * tensor_parallel


type Config = Mapping[str, Any]

# Of a ``config.json``: somebody else may have written it
_MAX_BYTES: Final = 4 << 20
_UNREADABLE: Final = (KeyError, TypeError, ValueError, ArithmeticError, RecursionError)
# What all families take where a field is absent
_DEFAULTS: Final[Config] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
# What the dense Qwen models take beside them
_QWEN_DEFAULTS: Final[Config] = {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
}
# Of all families
_IMPLEMENTED: Final[Config] = {"hidden_act": "silu", "partial_rotary_factor": 1.0, "is_causal": True}
# The figures that Megatron's implementation of Llama 3's scaling has built in; all Llama 3 models have them.
_SCALING: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class UnsupportedError(ValueError):
    """A configuration asks for something that is not implemented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    title: str
    # Returns the shape of a configuration that is implemented, with what the family takes for absent fields
    shape_of: Callable[[Config], ModelShape]
    # Fields, and the only value of each that is implemented: the one that the family takes where it is absent
    implemented: Config
    # What the family takes for other fields that are absent, beside what all take: as transformers' has it
    defaults: Config

    def shape(self, config: Config) -> ModelShape:
        # A field that is null says as much as one that is absent.
        given = {name: value for name, value in config.items() if value is not None}
        if quantized := given.get("quantization_config") or given.get("compression_config"):
            method = quantized.get("quant_method") if isinstance(quantized, Mapping) else quantized
            raise UnsupportedError(
                f"its weights are quantized ({method}), which cannot be trained here: give the model as it was before, "
                "or dequantize it"
            )
        for field, value in {**_IMPLEMENTED, **self.implemented}.items():
            if (found := given.get(field, value)) != value:
                raise UnsupportedError(f"{field}={found!r} cannot be trained here; {value!r} can")
        if other := set(given.get("layer_types", ())) - {"full_attention"}:
            raise UnsupportedError(f"layer_types has {sorted(map(str, other))}; full_attention alone can be trained")
        if config.get("num_key_value_heads", 0) is None:
            given["num_key_value_heads"] = given.get("num_attention_heads")
        return self.shape_of({**_DEFAULTS, **self.defaults, **given})


def read_shape(folder: Path) -> ModelShape:
    """ConversionError where it is not a ``config.json`` of a family, or uses something that is not implemented."""
    path = folder / "config.json"
    try:
        config = json.loads(_read(path))
        model_type = config["model_type"]
    except FileNotFoundError as error:
        raise ConversionError(f"{path} does not exist: give the folder of a Hugging Face model") from error
    except _UNREADABLE as error:
        raise ConversionError(f"{path} is no configuration of a model: {error!r}") from error
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ConversionError(f"{path}: model_type={model_type!r} cannot be trained here; {', '.join(FAMILIES)} can")
    try:
        return family.shape(config)
    except UnsupportedError as error:
        raise ConversionError(f"{path}: {error}") from error
    except ValidationError as error:
        wrong = error.errors()[0]
        where, found = ".".join(map(str, wrong["loc"])), wrong["input"]
        raise ConversionError(
            f"{path} is not a {family.title} configuration: {where}={found!r:.80}: {wrong['msg']}"
        ) from error
    except _UNREADABLE as error:
        raise ConversionError(f"{path} is not a {family.title} configuration: {error!r}") from error


def _read(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        # Reading it may never end.
        raise ValueError("no file")
    with path.open("rb") as file:
        found = file.read(_MAX_BYTES + 1)
    if len(found) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes")
    return found


def _rope_parameters(config: Config) -> Config:
    # Under the name of before or, without one, of today
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise TypeError(f"rope_parameters={rope!r} is no table")
    if nested := sorted(name for name, value in rope.items() if isinstance(value, Mapping)):
        raise UnsupportedError(f"rope_parameters of {nested[0]} cannot be trained here; the same for all layers can")
    if (part := rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedError(f"partial_rotary_factor={part!r} cannot be trained here; 1.0 can")
    return rope


def _rope_type(rope: Config) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _dense_shape(
    config: Config, *, qk_norm: bool, qkv_bias: bool, llama3_rope_factor: float | None = None
) -> ModelShape:
    # Without ``llama3_rope_factor`` scaled positions are refused.
    rope = _rope_parameters(config)
    kind = _rope_type(rope)
    expected = "default" if llama3_rope_factor is None else "llama3"
    if kind != expected:
        raise UnsupportedError(f"rope_type={kind!r} cannot be trained here; {expected!r} can")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    groups = config.get("num_key_value_heads", heads)
    if heads % groups:
        raise ValueError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={groups}")
    if "head_dim" not in config and hidden % heads:
        raise ValueError(
            f"hidden_size={hidden} is no multiple of num_attention_heads={heads}, and there is no head_dim"
        )
    return ModelShape(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        groups=groups,
        head_dim=config["head_dim"] if "head_dim" in config else hidden // heads,
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        norm_epsilon=config["rms_norm_eps"],
        rope_theta=config["rope_theta"] if rope.get("rope_theta") is None else rope["rope_theta"],
        tied=config["tie_word_embeddings"],
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        llama3_rope_factor=llama3_rope_factor,
    )


def _llama_shape(config: Config) -> ModelShape:
    rope = _rope_parameters(config)
    if _rope_type(rope) != "llama3":
        return _dense_shape(config, qk_norm=False, qkv_bias=False)
    told = {"original_max_position_embeddings": config["max_position_embeddings"], **rope}
    for field, value in _SCALING.items():
        if (found := told.get(field)) != value:
            raise UnsupportedError(f"{field}={found!r} cannot be trained here; {value!r} can")
    return _dense_shape(config, qk_norm=False, qkv_bias=False, llama3_rope_factor=rope["factor"])


def _qwen3_moe_shape(config: Config) -> ModelShape:
    if dense := config.get("mlp_only_layers"):
        raise UnsupportedError(f"mlp_only_layers={dense!r} cannot be trained here; [] can")
    per_token, experts = config["num_experts_per_tok"], config.get("num_experts", config.get("num_local_experts", 128))
    if config["norm_topk_prob"] and per_token == 1:
        raise UnsupportedError("norm_topk_prob=True with one expert for each token: its router would learn nothing")
    if per_token > experts:
        raise ValueError(f"{per_token} of {experts} experts")
    return replace(
        _dense_shape(config, qk_norm=True, qkv_bias=False),
        intermediate=config["moe_intermediate_size"],
        experts=experts,
        experts_per_token=per_token,
        normalized_routing=config["norm_topk_prob"],
    )


# By ``model_type`` of ``config.json``
FAMILIES: Final[dict[str, ModelFamily]] = {
    # Llama 2 and 3 (Grattafiori et al., arXiv:2407.21783), and models that are built like them: no biases, no norms
    # within attention; from 3.1 on low frequencies of positions are scaled.
    "llama": ModelFamily(
        title="Llama",
        shape_of=_llama_shape,
        implemented={"attention_bias": False, "mlp_bias": False},
        defaults={"vocab_size": 32_000, "intermediate_size": 11_008, "max_position_embeddings": 2048},
    ),
    # Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115), dense: queries, keys and values have biases.
    "qwen2": ModelFamily(
        title="Qwen2",
        shape_of=partial(_dense_shape, qk_norm=False, qkv_bias=True),
        implemented={"use_sliding_window": False},
        defaults=_QWEN_DEFAULTS,
    ),
    # Qwen3 (Yang et al., arXiv:2505.09388), dense: queries and keys are normalized in each head, no biases.
    "qwen3": ModelFamily(
        title="Qwen3",
        shape_of=partial(_dense_shape, qk_norm=True, qkv_bias=False),
        implemented={"attention_bias": False, "use_sliding_window": False},
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
    ),
    # The same with a mixture of experts: all layers have experts, none is shared.
    "qwen3_moe": ModelFamily(
        title="Qwen3 MoE",
        shape_of=_qwen3_moe_shape,
        implemented={"attention_bias": False, "use_sliding_window": False, "decoder_sparse_step": 1},
        defaults={
            **_QWEN_DEFAULTS,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
    ),
}
