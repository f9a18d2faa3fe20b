"""Llama 2 and 3, dense: no biases, no norms within attention; from 3.1 on low frequencies of positions are scaled."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from trinity_bus.training.families.family import (
    ModelFamily,
    UnsupportedError,
    dense_shape,
    number,
    rope_parameters,
    rope_type,
)
from trinity_bus.training.families.shape import ModelShape

# The figures that Megatron's implementation of the scaling has built in; all Llama 3 models have them.
_SCALING: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class Llama(ModelFamily):
    """Llama 2 and 3 (Grattafiori et al., arXiv:2407.21783), and models that are built like them."""

    model_type = "llama"
    title = "Llama"
    implemented: ClassVar[Mapping[str, object]] = {"attention_bias": False, "mlp_bias": False}
    defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 32_000,
        "intermediate_size": 11_008,
        "max_position_embeddings": 2048,
    }

    def _shape(self, config: Mapping[str, Any]) -> ModelShape:
        rope = rope_parameters(config)
        if rope_type(rope) != "llama3":
            return dense_shape(config, qk_norm=False, qkv_bias=False)
        told = {"original_max_position_embeddings": config["max_position_embeddings"], **rope}
        for field, value in _SCALING.items():
            if (found := number(told, field)) != value:
                raise UnsupportedError(f"{field}={found!r} cannot be trained here; {value!r} can")
        return dense_shape(config, qk_norm=False, qkv_bias=False, llama3_rope_factor=float(number(rope, "factor")))
