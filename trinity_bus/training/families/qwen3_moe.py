"""Qwen3 MoE: Qwen3's attention, and experts in place of each layer's MLP."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from trinity_bus.training.families.family import ModelFamily, UnsupportedError, dense_shape
from trinity_bus.training.families.shape import ModelShape


class Qwen3Moe(ModelFamily):
    """Qwen3 with a mixture of experts (Yang et al., arXiv:2505.09388): all layers have experts, none is shared."""

    model_type = "qwen3_moe"
    title = "Qwen3 MoE"
    implemented: ClassVar[Mapping[str, object]] = {
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
    }

    def _shape(self, config: Mapping[str, Any]) -> ModelShape:
        if dense := config.get("mlp_only_layers"):
            raise UnsupportedError(f"mlp_only_layers={dense!r} cannot be trained here; [] can")
        per_token, normalized = int(config["num_experts_per_tok"]), bool(config.get("norm_topk_prob", False))
        if normalized and per_token == 1:
            raise UnsupportedError("norm_topk_prob=True with one expert for each token: its router would learn nothing")
        return replace(
            dense_shape(config, qk_norm=True, qkv_bias=False),
            intermediate=int(config["moe_intermediate_size"]),
            experts=int(config["num_experts"] if "num_experts" in config else config["num_local_experts"]),
            experts_per_token=per_token,
            normalized_routing=normalized,
        )
