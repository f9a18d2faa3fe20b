"""What a model family is to the trainer: how its ``config.json`` is read.

A family says which of its configurations it implements, and refuses every other by name: a model that is trained with
one of its parts left out would learn something else, silently. Names and layouts of tensors are the same for all
families that there are so far, see ``tensors``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from trinity_bus.training.families.shape import ModelShape


class UnsupportedError(ValueError):
    """A configuration asks for something that is not implemented."""


class ModelFamily(ABC):
    """One family of models, named as Hugging Face's ``model_type``."""

    model_type: ClassVar[str]
    title: ClassVar[str]
    implemented: ClassVar[Mapping[str, object]]
    """Fields, and the only value of each that is implemented: the one that the family takes where it is absent."""

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Read a configuration.

        Args:
            config: What ``config.json`` holds.

        Raises:
            UnsupportedError: It uses something that is not implemented.
            KeyError, TypeError, ValueError: It is no configuration of this family.
        """
        for field, value in self.implemented.items():
            if (found := config.get(field, value)) != value:
                raise UnsupportedError(f"{field}={found!r} cannot be trained here; {value!r} can")
        return self._shape(config)

    @abstractmethod
    def _shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape of a configuration that is implemented."""


def rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a configuration says about rotary positions, under the name of today or of before."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope


def rope_type(rope: Mapping[str, Any]) -> str:
    """Return how rotary positions are scaled, under the name of today or of before."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def dense_shape(
    config: Mapping[str, Any], *, qk_norm: bool, qkv_bias: bool, llama3_rope_factor: float | None = None
) -> ModelShape:
    """Return the shape of a dense model, from the fields that all families spell alike.

    Args:
        config: What ``config.json`` holds.
        qk_norm: See :class:`ModelShape`.
        qkv_bias: Likewise.
        llama3_rope_factor: Likewise. Unset: scaled positions are refused.

    Raises:
        UnsupportedError: Positions are scaled in a way that is not implemented.
        KeyError, TypeError, ValueError: A field is missing or of another kind.
    """
    rope = rope_parameters(config)
    kind = rope_type(rope)
    expected = "default" if llama3_rope_factor is None else "llama3"
    if kind != expected:
        raise UnsupportedError(f"rope_type={kind!r} cannot be trained here; {expected!r} can")
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    return ModelShape(
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
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        llama3_rope_factor=llama3_rope_factor,
    )
