"""How many parameters a model has, counted from its shape, and the shapes of models that people train. Pure.

::

    embedding    V h                                  output       V h, unless it is the embedding
    attention    h (a + 2 g) d + a d h                final norm   h
                 + (a + 2 g) d  with biases, + 2 d  with norms of queries and keys
    MLP          3 h f, of each expert                router       h E, with E experts
    norms        2 h

with vocabulary ``V``, hidden size ``h``, ``a`` heads and ``g`` key-value heads of dimension ``d``, and width ``f``.

The shapes are from the ``config.json`` that each is published with (Yang et al., "Qwen3 Technical Report",
arXiv:2505.09388, tables 1 and 2, has the same).
"""

from types import MappingProxyType
from typing import Final

from trinity_bus.training.families import ModelShape


def parameters(shape: ModelShape, *, tensor: int = 1, pipeline: int = 1, expert: int = 1) -> int:
    """Return how many parameters a model has, or the rank that has the most: one of the last stage, or of the first."""
    h, d = shape.hidden, shape.head_dim
    attention = h * (shape.heads + 2 * shape.groups) * d + shape.heads * d * h
    if shape.qkv_bias:
        attention += (shape.heads + 2 * shape.groups) * d
    experts = -(-max(1, shape.experts) // expert)
    split = attention + 3 * h * shape.intermediate * experts
    whole = 2 * h + (2 * d if shape.qk_norm else 0) + h * shape.experts
    layers = -(-shape.layers // pipeline)
    embedding = shape.padded_vocabulary(tensor) // tensor * h
    # One rank has both ends; of several stages the first has the embedding, and the last, as large, the output.
    ends = embedding * (2 if pipeline == 1 and not shape.tied else 1)
    return layers * (-(-split // tensor) + whole) + ends + h


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Return the parameters of adapters: ``r (in + out)`` beside a linear layer (Hu et al., arXiv:2106.09685, 4.1)."""
    h, d = shape.hidden, shape.head_dim
    queries, keys = shape.heads * d, shape.groups * d
    # Queries, keys and values are one layer to the trainer, as gate and up are.
    layers = ((h, queries + 2 * keys), (queries, h), (h, 2 * shape.intermediate), (shape.intermediate, h))
    return shape.layers * rank * sum(inwards + outwards for inwards, outwards in layers)


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
