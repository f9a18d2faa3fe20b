"""Deltas: what turns the bytes of one version into those of another, where few of the values have changed.

For each tensor that changed, in the order of the layout: the distances between changed elements, as unsigned integers
of the least width that holds the largest, then the new values, bit for bit. A distance counts the unchanged elements
before a changed one. Where 2 % of bfloat16 values change, a delta has about 4 % of the version's bytes; where training
changes nearly all values, as in float32, there is none.

    payload:  | distances of tensor a | values of a | distances of tensor c | values of c | ...
    changes:  [(index of a, count, width), (index of c, count, width), ...]

A delta says nothing about whether it is applied to the right bytes: that is its bearer's part, by the base's checksum
before and the target's after. Overwriting is idempotent, so a delta that is applied twice does no harm.

Failures: whatever in ``changes`` or the payload does not fit the layout is a ``DeltaError``; buffers may then be
partly changed, and are no longer those of any version. Nothing here imports torch: buffers are NumPy arrays of uint8.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from trinity_bus.weights.errors import DeltaError
from trinity_bus.weights.layout import ITEM_SIZES, Bucket, Slot

type Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


class Change(msgspec.Struct, frozen=True, array_like=True):
    tensor: int  # index in the layout
    count: int  # elements that change
    width: int  # bytes of each distance: 1, 2, 4 or 8

    def nbytes(self, item_size: int) -> int:
        return self.count * (self.width + item_size)


@dataclass(frozen=True, slots=True)
class Delta:
    changes: tuple[Change, ...]
    payload: tuple[Bytes, ...]  # in order; together they are the payload

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.payload)


def encode(layout: Sequence[Bucket], base: Sequence[Any], target: Sequence[Any], limit: int) -> Delta | None:
    """Return what turns ``base`` into ``target``; None where its payload would be ``limit`` bytes or more.

    ``base`` and ``target`` have, for each bucket, something that numpy takes for an array.
    """
    changes: list[Change] = []
    payload: list[Bytes] = []
    size = 0
    at = -1
    for index, bucket, slot in _slots(layout):
        if bucket != at:
            # Once, since it may have to be read.
            before, after = np.asarray(base[bucket]), np.asarray(target[bucket])
            at = bucket
        old, new = _elements(before, slot), _elements(after, slot)
        positions = np.flatnonzero(old != new)
        if positions.size == 0:
            continue
        distances = np.diff(positions, prepend=-1) - 1
        width = next(width for width in _UNSIGNED if int(distances.max()) < 1 << 8 * width)
        change = Change(index, int(positions.size), width)
        size += change.nbytes(new.itemsize)
        if size >= limit:
            return None
        changes.append(change)
        payload += [distances.astype(_UNSIGNED[width]).view(np.uint8), new[positions].view(np.uint8)]
    return Delta(tuple(changes), tuple(payload))


def payload_size(layout: Sequence[Bucket], changes: Iterable[Change]) -> int:
    """Return the bytes of the payload that belongs to ``changes``; to be called before memory is taken for it."""
    slots = [slot for _, _, slot in _slots(layout)]
    size, last = 0, -1
    for change in changes:
        if not last < change.tensor < len(slots):
            raise DeltaError(f"the delta changes tensor {change.tensor} after {last}, of {len(slots)}")
        item_size = ITEM_SIZES[slots[change.tensor].meta.dtype]
        elements = slots[change.tensor].meta.nbytes // item_size
        if change.width not in _UNSIGNED or not 0 < change.count <= elements:
            raise DeltaError(f"the delta changes {change.count} of {elements} elements, distances of {change.width} B")
        size += change.nbytes(item_size)
        last = change.tensor
    return size


def apply(layout: Sequence[Bucket], buffers: Sequence[Bytes], changes: Sequence[Change], payload: Bytes) -> None:
    """Turn the base's bytes, one array for each bucket, into the target's, in place."""
    if payload_size(layout, changes) != payload.nbytes:
        raise DeltaError(f"the delta has {payload.nbytes} bytes, its changes say {payload_size(layout, changes)}")
    slots = list(_slots(layout))
    at = 0
    for change in changes:
        _, bucket, slot = slots[change.tensor]
        elements = _elements(buffers[bucket], slot)
        values_at = at + change.count * change.width
        end = values_at + change.count * elements.itemsize
        distances = payload[at:values_at].view(_UNSIGNED[change.width])
        # In floating point first: a sum of integers that are too large would come out small.
        if distances.sum(dtype=np.float64) + change.count > elements.size:
            raise DeltaError(f"the delta changes elements beyond the {elements.size} of {slot.meta.name!r}")
        positions = np.cumsum(distances.astype(np.int64) + 1) - 1
        elements[positions] = payload[values_at:end].view(elements.dtype)
        at = end


def _slots(layout: Sequence[Bucket]) -> Iterable[tuple[int, int, Slot]]:
    # Index of the tensor, index of its bucket, and where it lies there.
    index = 0
    for number, bucket in enumerate(layout):
        for slot in bucket.slots:
            yield index, number, slot
            index += 1


def _elements(buffer: Bytes, slot: Slot) -> np.ndarray[Any, Any]:
    # Comparing floats would take -0.0 for 0.0, and no NaN for itself.
    place = buffer[slot.offset : slot.offset + slot.meta.nbytes]
    return place.view(_UNSIGNED[ITEM_SIZES[slot.meta.dtype]])
