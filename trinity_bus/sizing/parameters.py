"""How many parameters a model has: what its tensors hold, counted from its shape. Pure.

::

    embedding    V h                                  output       V h, unless it is the embedding
    attention    h (a + 2 g) d + a d h                final norm   h
                 + (a + 2 g) d  with biases, + 2 d  with norms of queries and keys
    MLP          3 h f, of each expert                router       h E, with E experts
    norms        2 h

with vocabulary ``V``, hidden size ``h``, ``a`` heads and ``g`` key-value heads of dimension ``d``, and width ``f``.
"""

from trinity_bus.training.families.shape import ModelShape


def parameters(shape: ModelShape) -> int:
    return rank_parameters(shape, tensor=1, pipeline=1, expert=1)


def rank_parameters(shape: ModelShape, *, tensor: int, pipeline: int, expert: int) -> int:
    """Return how many parameters the rank holds that has the most: one of the last stage, or of the first."""
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
