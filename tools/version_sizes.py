"""What one version moves and holds, from the trainer's GPUs to the explorers'. Pure.

``V`` bytes, on a trainer that divides the model over ``n`` ranks, for ``m`` engines of ``t`` ranks each::

    trainer's GPUs   each rank gathers V - V / n, tensor by tensor: the largest is there twice for a moment
    trainer's host   V over the bus; as files, or three times in memory with ``publish=staged``
    network          V into each engine's machine; V from the trainer with ``memory``, where explorers pass it on
    engine's host    V, by one of its ranks, in memory that the others map
    engine's GPUs    V / t over the bus into each, layer by layer: one layer more than the model for a moment

With ``nccl`` two parts of 64 MiB are under way on the sender's GPU, and on the GPU of the rank that receives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trinity_bus.sizing.memory import parameters
from trinity_bus.training.families import ModelShape

_BFLOAT16: Final = 2
_UNDER_WAY: Final = 2 * (64 << 20)  # ``trinity_bus.weights.link``: so many parts of so many bytes
PINNED_BYTES_S: Final = 52e9  # From pinned host memory to a GPU: measured on an H100, ``benchmarks/results/gpu.json``


@dataclass(frozen=True, slots=True)
class Moved:
    what: str
    nbytes: float
    versions: float  # The same, in versions


def moved(shape: ModelShape, *, divided: int, engines: int, engine_ranks: int) -> Sequence[Moved]:
    """Return what a bfloat16 version moves and holds, with the model ``divided`` over so many ranks of the trainer."""
    whole = _BFLOAT16 * parameters(shape)
    largest = _BFLOAT16 * shape.vocabulary * shape.hidden
    # A layer, or the embedding, whichever is larger; one layer is what one stage of as many holds, without its ends.
    stage = parameters(shape, tensor=engine_ranks, pipeline=shape.layers)
    rows = {
        "a version": whole,
        "gathered by each rank of the trainer": whole * (divided - 1) / divided,
        "more on a GPU of the trainer, at most": (2 * largest if divided > 1 else 0) + _UNDER_WAY,
        "from a GPU to the trainer's host": whole,
        "out of the trainer's machine": whole,
        "into all explorers' machines": whole * engines,
        "in the host memory of an engine": whole,
        "into each GPU of an engine, in the pause": whole / engine_ranks,
        "more on a GPU of an engine, at most": _BFLOAT16 * stage + _UNDER_WAY,
    }
    return [Moved(what, nbytes, nbytes / whole) for what, nbytes in rows.items()]
