"""What a model family is to the trainer: how its ``config.json`` is read.

A family says which of its configurations it implements, and refuses every other by name: a model that is trained with
one of its parts left out would learn something else, silently. Names and layouts of tensors are the same for all
families that there are so far, see ``tensors``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from trinity_bus.training.families.shape import ModelShape

# What all families take where a field is absent
DEFAULTS: Final[Mapping[str, object]] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
# What the dense Qwen models take beside them
QWEN_DEFAULTS: Final[Mapping[str, object]] = {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
}
# Of all families
_IMPLEMENTED: Final[Mapping[str, object]] = {"hidden_act": "silu", "partial_rotary_factor": 1.0, "is_causal": True}


class UnsupportedError(ValueError):
    """A configuration asks for something that is not implemented."""


class ModelFamily(ABC):
    """One family of models, named as Hugging Face's ``model_type``."""

    model_type: ClassVar[str]
    title: ClassVar[str]
    # Fields, and the only value of each that is implemented: the one that the family takes where it is absent.
    implemented: ClassVar[Mapping[str, object]]
    # What the family takes for other fields that are absent, where it is not :data:`DEFAULTS`: as transformers'
    # configuration of the family has it.
    defaults: ClassVar[Mapping[str, object]] = {}

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Read a configuration. A field that is null says as much as one that is absent.

        Raises:
            UnsupportedError: It uses something that is not implemented.
            KeyError, TypeError, ValueError: It is no configuration of this family.
        """
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
        return self._shape({**DEFAULTS, **self.defaults, **given})

    @abstractmethod
    def _shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape of a configuration that is implemented, with what the family takes for absent fields."""


def rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a configuration says about rotary positions, under the name of before or, without one, of today.

    UnsupportedError where layers differ in it, or a part of each head is not rotated.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise TypeError(f"rope_parameters={rope!r} is no table")
    if nested := sorted(name for name, value in rope.items() if isinstance(value, Mapping)):
        raise UnsupportedError(f"rope_parameters of {nested[0]} cannot be trained here; the same for all layers can")
    if (part := rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedError(f"partial_rotary_factor={part!r} cannot be trained here; 1.0 can")
    return rope


def rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def number(config: Mapping[str, Any], field: str) -> float:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} is missing" if value is None else f"{field}={value!r} is no number")
    return value


def size(config: Mapping[str, Any], field: str) -> int:
    value = number(config, field)
    if value != int(value):
        raise ValueError(f"{field}={value!r} is no whole number")
    return int(value)


def flag(config: Mapping[str, Any], field: str) -> bool:
    if not isinstance(value := config.get(field), bool):
        raise TypeError(f"{field}={value!r} is neither true nor false")
    return value


def dense_shape(
    config: Mapping[str, Any], *, qk_norm: bool, qkv_bias: bool, llama3_rope_factor: float | None = None
) -> ModelShape:
    """Return the shape of a dense model, from the fields that all families spell alike.

    Without ``llama3_rope_factor`` scaled positions are refused.
    """
    rope = rope_parameters(config)
    kind = rope_type(rope)
    expected = "default" if llama3_rope_factor is None else "llama3"
    if kind != expected:
        raise UnsupportedError(f"rope_type={kind!r} cannot be trained here; {expected!r} can")
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    groups = size(config, "num_key_value_heads") if "num_key_value_heads" in config else heads
    if heads < 1 or groups < 1 or heads % groups:
        raise ValueError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={groups}")
    if "head_dim" not in config and hidden % heads:
        raise ValueError(
            f"hidden_size={hidden} is no multiple of num_attention_heads={heads}, and there is no head_dim"
        )
    return ModelShape(
        layers=size(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        groups=groups,
        head_dim=size(config, "head_dim") if "head_dim" in config else hidden // heads,
        intermediate=size(config, "intermediate_size"),
        vocabulary=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings"),
        norm_epsilon=float(number(config, "rms_norm_eps")),
        rope_theta=float(number(config if rope.get("rope_theta") is None else rope, "rope_theta")),
        tied=flag(config, "tie_word_embeddings"),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        llama3_rope_factor=llama3_rope_factor,
    )
