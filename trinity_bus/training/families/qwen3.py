from collections.abc import Mapping
from typing import Any, ClassVar

from trinity_bus.training.families.family import QWEN_DEFAULTS, ModelFamily, dense_shape
from trinity_bus.training.families.shape import ModelShape


class Qwen3(ModelFamily):
    """Qwen3 (Yang et al., arXiv:2505.09388), dense: queries and keys are normalized in each head, no biases."""

    model_type = "qwen3"
    title = "Qwen3"
    implemented: ClassVar[Mapping[str, object]] = {"attention_bias": False, "use_sliding_window": False}
    defaults: ClassVar[Mapping[str, object]] = {**QWEN_DEFAULTS, "head_dim": 128}

    def _shape(self, config: Mapping[str, Any]) -> ModelShape:
        return dense_shape(config, qk_norm=True, qkv_bias=False)
