"""Buckets: the one order and layout in which both sides see a model's bytes.

Tensors are packed in the order in which the trainer names them; a tensor that does not fit into what is left of a
bucket opens the next one, and a tensor larger than a bucket gets one of its own. Offsets are multiples of 16, so that
every tensor can be viewed in place; the gaps are zeros, so that the checksum depends on the tensors alone.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

ALIGNMENT = 16  # Bytes; at least the size of the largest element

# Bytes per element of each dtype that can travel, by torch's name.
ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


MAX_NAME_LENGTH = 512
MAX_DIMENSIONS = 8
MAX_TOTAL_BYTES = 4 << 40  # of a whole model, and so the most elements of one dimension


class TensorMeta(Struct, frozen=True, array_like=True, gc=False):
    """Name, dtype and shape of one tensor as it travels: in JSON the list ``[name, dtype, shape]``."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
    dtype: str  # a key of ``ITEM_SIZES``
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_TOTAL_BYTES)], ...], Meta(max_length=MAX_DIMENSIONS)]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


class Slot(Struct, frozen=True, gc=False):
    meta: TensorMeta
    offset: int  # bytes from the start of the bucket


@dataclass(frozen=True, slots=True)
class Bucket:
    slots: tuple[Slot, ...]
    nbytes: int


def plan(metas: Iterable[TensorMeta], bucket_bytes: int) -> list[Bucket]:
    """Lay tensors out in order; ``bucket_bytes`` bounds buckets of more than one tensor."""
    if bucket_bytes <= 0:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; it must be positive")
    buckets: list[Bucket] = []
    slots: list[Slot] = []
    end = 0
    for meta in metas:
        offset, size = -(-end // ALIGNMENT) * ALIGNMENT, meta.nbytes
        if slots and offset + size > bucket_bytes:
            buckets.append(Bucket(tuple(slots), end))
            slots, offset = [], 0
        slots.append(Slot(meta, offset))
        end = offset + size
    if slots:
        buckets.append(Bucket(tuple(slots), end))
    return buckets
