"""The shapes of models that people train, by name. Pure.

From the ``config.json`` that each is published with (Yang et al., "Qwen3 Technical Report", arXiv:2505.09388, tables 1
and 2, has the same).
"""

from types import MappingProxyType
from typing import Final

from trinity_bus.training.families.shape import ModelShape


def _qwen3(
    layers: int, hidden: int, heads: int, groups: int, intermediate: int, *, tied: bool = False, experts: int = 0
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        groups=groups,
        head_dim=128,
        intermediate=intermediate,
        vocabulary=151_936,
        max_positions=40_960,
        norm_epsilon=1e-6,
        rope_theta=1e6,
        tied=tied,
        qk_norm=True,
        qkv_bias=False,
        experts=experts,
        experts_per_token=8 if experts else 0,
    )


# Of Qwen3, by the names of its sizes
MODELS: Final = MappingProxyType(
    {
        "0.6B": _qwen3(28, 1024, 16, 8, 3072, tied=True),
        "1.7B": _qwen3(28, 2048, 16, 8, 6144, tied=True),
        "4B": _qwen3(36, 2560, 32, 8, 9728, tied=True),
        "8B": _qwen3(36, 4096, 32, 8, 12_288),
        "14B": _qwen3(40, 5120, 40, 8, 17_408),
        "32B": _qwen3(64, 5120, 64, 8, 25_600),
        "30B-A3B": _qwen3(48, 2048, 32, 4, 768, experts=128),
        "235B-A22B": _qwen3(94, 4096, 64, 4, 1536, experts=128),
    }
)
