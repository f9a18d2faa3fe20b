from collections.abc import Mapping
from typing import Any, ClassVar

from trinity_bus.training.families.family import QWEN_DEFAULTS, ModelFamily, dense_shape
from trinity_bus.training.families.shape import ModelShape


class Qwen2(ModelFamily):
    """Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115), dense: queries, keys and values have biases."""

    model_type = "qwen2"
    title = "Qwen2"
    implemented: ClassVar[Mapping[str, object]] = {"use_sliding_window": False}
    defaults: ClassVar[Mapping[str, object]] = QWEN_DEFAULTS

    def _shape(self, config: Mapping[str, Any]) -> ModelShape:
        return dense_shape(config, qk_norm=False, qkv_bias=True)
