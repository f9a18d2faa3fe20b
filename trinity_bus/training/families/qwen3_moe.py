from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from trinity_bus.training.families.family import QWEN_DEFAULTS, ModelFamily, UnsupportedError, dense_shape, flag, size
from trinity_bus.training.families.shape import ModelShape


class Qwen3Moe(ModelFamily):
    """Qwen3 with a mixture of experts (Yang et al., arXiv:2505.09388): all layers have experts, none is shared."""

    model_type = "qwen3_moe"
    title = "Qwen3 MoE"
    implemented: ClassVar[Mapping[str, object]] = {
        "attention_bias": False,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
    }
    defaults: ClassVar[Mapping[str, object]] = {
        **QWEN_DEFAULTS,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    }

    def _shape(self, config: Mapping[str, Any]) -> ModelShape:
        if dense := config.get("mlp_only_layers"):
            raise UnsupportedError(f"mlp_only_layers={dense!r} cannot be trained here; [] can")
        per_token, normalized = size(config, "num_experts_per_tok"), flag(config, "norm_topk_prob")
        if normalized and per_token == 1:
            raise UnsupportedError("norm_topk_prob=True with one expert for each token: its router would learn nothing")
        return replace(
            dense_shape(config, qk_norm=True, qkv_bias=False),
            intermediate=size(config, "moe_intermediate_size"),
            experts=size({"num_experts": config.get("num_local_experts", 128), **config}, "num_experts"),
            experts_per_token=per_token,
            normalized_routing=normalized,
        )
