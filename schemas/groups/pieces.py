"""A group that is too large for one record, in several: the inverse of :func:`join_groups`. Pure.

::

    group --split_group--> pieces: whole samples, in their order --one record each--> join_groups --> group

The limit of a record is the cluster's (``mesh.max_record_mib``); what is cut are samples, and one that is larger by
itself is an error. Two neighbours together are larger than the limit, or they would be one piece, so there are never
many: a group has ``ExperienceGroup.MAX_BYTES`` at most.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.errors import EncodeError, SchemaError
from schemas.experience import MAX_PIECES, ExperienceGroup, present, row_bounds
from schemas.groups.column import COLUMNS, OPTIONAL_COLUMNS, Column
from schemas.groups.group_rules import IDENTIFIERS

# more bytes than all takes that is of no sample: field names, table of buffers, padding; identifiers apart
_FRAMING = 1024
_FRAMING_OF_COLUMN = 96  # the same of each column that need not be there
_MASK = "mask_bits"
_OF_SAMPLES = ("versions", "turn_starts")  # columns of which a row begins with the number of its sample
_packed = msgspec.msgpack.Encoder().encode


def split_group(group: ExperienceGroup, max_bytes: int) -> list[ExperienceGroup]:
    """Return the group in pieces whose encoded form has ``max_bytes`` at most; ``join_groups`` is the way back."""
    framing = _FRAMING + _FRAMING_OF_COLUMN * len(present(group))
    room = max_bytes - framing - sum(len(getattr(group, name).encode()) for name in IDENTIFIERS)
    ends, size = [], 0
    for sample, weight in enumerate(_weights(group)):
        if weight > room:
            raise EncodeError(
                f"run {group.run_ids[sample]}: a sample of {weight:,} bytes, and {room:,} is the most that a record of "
                "experiences has room for (mesh.max_record_mib): let the workflow give smaller samples"
            )
        if size + weight > room:
            ends.append(sample)
            size = 0
        size += weight
    cuts = [0, *ends, len(group)]
    if len(cuts) - 1 > MAX_PIECES:
        raise EncodeError(f"a group in {len(cuts) - 1} pieces, and a result names {MAX_PIECES} at most")
    return [piece(group, first, end) for first, end in pairwise(cuts)]


def _weights(group: ExperienceGroup) -> list[int]:
    # The bytes of each sample, rounded up.
    bounds, rows = _bounds(group), np.zeros(len(group), np.int64)
    for column, array in _columns(group):
        counts = np.diff(bounds[column.length])
        rows += (counts + 7) // 8 if column.name == _MASK else counts * array.itemsize * prod(array.shape[1:])
    metrics = map(len, map(_packed, group.metrics or [{}] * len(group)))
    reasons = map(len, map(_packed, group.finish_reasons or [""] * len(group)))
    return [row + text + word for row, text, word in zip(rows.tolist(), metrics, reasons, strict=True)]


def _columns(group: ExperienceGroup) -> list[tuple[Column, NDArray[Any]]]:
    # All that there are; the mask with an entry for each response token.
    return [(column, _column(group, column)) for column in COLUMNS] + present(group)


def _column(group: ExperienceGroup, column: Column) -> Any:
    return group.mask if column.name == _MASK else getattr(group, column.name)


def _bounds(group: ExperienceGroup) -> dict[str, list[int]]:
    # Where the rows of each sample begin, by the ``length`` of a column.
    bounds = row_bounds(group)
    spans = np.searchsorted(group.versions[:, 0], np.arange(len(group) + 1)).tolist()
    return {**bounds, "sum(lengths)": bounds["tokens"], "ceil(responses / 8)": bounds["responses"], "spans": spans}


def _moved(column: Column, rows: NDArray[Any], by: int) -> NDArray[Any]:
    # The same rows where the number of each sample is another one.
    return rows + np.array([by, *[0] * (rows.shape[1] - 1)], rows.dtype) if column.name in _OF_SAMPLES else rows


def piece(group: ExperienceGroup, first: int, end: int) -> ExperienceGroup:
    """Return the samples from ``first`` to before ``end``."""
    bounds, found = _bounds(group), dict[str, NDArray[Any]]()
    for column, array in _columns(group):
        at = bounds[column.length]
        rows = _moved(column, array[at[first] : at[end]], -first)
        found[column.name] = np.packbits(rows) if column.name == _MASK else rows
    return msgspec.structs.replace(
        group, metrics=group.metrics[first:end], finish_reasons=group.finish_reasons[first:end], **found
    )


def join_groups(parts: Sequence[ExperienceGroup]) -> ExperienceGroup:
    """Return the group of a task that was split over several attempts, in the order of the parts.

    What an optional column says of a part that lacks it is that nobody knows; of routes all parts have some, or the
    whole has none. What is one value for each group (attempt, explorer, incarnation) is that of the first part. A
    single part is returned as it is. SchemaError: there is none, or they are of several tasks.
    """
    if len({part.task_id for part in parts}) != 1:
        raise SchemaError(f"a group is of one task, got parts of {len({part.task_id for part in parts})}")
    if len(parts) == 1:
        return parts[0]
    firsts = np.cumsum([0, *map(len, parts[:-1])]).tolist()
    return msgspec.structs.replace(
        parts[0],
        metrics=[metrics for part in parts for metrics in part.metrics],
        finish_reasons=[reason for part in parts for reason in part.finish_reasons],
        **{column.name: _joined(column, parts, firsts) for column in (*COLUMNS, *OPTIONAL_COLUMNS)},
    )


def _joined(column: Column, parts: Sequence[ExperienceGroup], firsts: Sequence[int]) -> NDArray[Any] | None:
    # A column of the whole, None where it has none. What a part lacks is not known of it; of routes that cannot be
    # said: the whole has them where all parts have.
    arrays = [_column(part, column) for part in parts]
    known = [array for array in arrays if array is not None]
    if not known:
        return None
    if column.name == "routes":
        all_have = len(known) == len(parts) and len({array.shape[1:] for array in known}) == 1
        return np.concatenate(known) if all_have else None
    filled = [_unknown(column, part) if array is None else array for array, part in zip(arrays, parts, strict=True)]
    whole = np.concatenate([_moved(column, array, first) for array, first in zip(filled, firsts, strict=True)])
    return np.packbits(whole) if column.name == _MASK else whole


def _unknown(column: Column, part: ExperienceGroup) -> NDArray[Any]:
    rows = row_bounds(part)[column.length][-1]
    unknown = 0 if column.name == "kept_sizes" else np.nan
    return np.full((rows, *(size for size in column.tail if isinstance(size, int))), unknown).astype(column.dtype)
