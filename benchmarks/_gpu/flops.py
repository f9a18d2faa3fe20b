"""How many operations training takes, counted from a model's shape. Pure."""

from trinity_bus.sizing.memory import parameters
from trinity_bus.training.families import ModelShape


def flops_per_token(shape: ModelShape, sequence: int) -> int:
    """Return the operations of forward and backward for one token: ``6 P + 12 L a d s``.

    ``P`` are the parameters that are multiplied by (the embedding only where it is the output layer, too), ``L`` the
    layers of ``a`` heads of dimension ``d``, ``s`` the tokens of the sample. All pairs of positions count, though
    attention is causal. After Chowdhery et al., arXiv:2204.02311, appendix B.
    """
    multiplied = parameters(shape) - (0 if shape.tied else shape.vocabulary * shape.hidden)
    return 6 * multiplied + 12 * shape.layers * shape.heads * shape.head_dim * sequence
