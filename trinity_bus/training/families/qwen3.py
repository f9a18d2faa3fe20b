"""Qwen3, dense: queries and keys are normalized in each head, no biases."""

from collections.abc import Mapping
from typing import Any

from trinity_bus.training.families.family import Implemented, ModelFamily, dense_shape
from trinity_bus.training.families.shape import ModelShape


class Qwen3(ModelFamily):
    """Qwen3 (Yang et al., arXiv:2505.09388), the dense models."""

    model_type = "qwen3"
    title = "Qwen3"
    implemented = (
        Implemented("hidden_act", "silu", "silu"),
        Implemented("attention_bias", False, False),
        Implemented("use_sliding_window", False, False),
    )

    def _shape(self, config: Mapping[str, Any]) -> ModelShape:
        return dense_shape(config, qk_norm=True, qkv_bias=False)
