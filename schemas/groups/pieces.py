"""A group that is too large for one record, in several: the inverse of :func:`join_groups`. Pure.

::

    group --split_group--> pieces: whole samples, in their order --one record each--> join_groups --> group

The limit of a record is the cluster's (``mesh.max_record_mib``); what is cut are samples, and one that is larger by
itself is an error. Two neighbours together are larger than the limit, or they would be one piece, so there are never
many: a group has ``ExperienceGroup.MAX_BYTES`` at most.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.errors import EncodeError, SchemaError
from schemas.experience import MAX_PIECES, ExperienceGroup, Int32, present, row_bounds
from schemas.groups.column import OPTIONAL_COLUMNS, Column
from schemas.groups.group_rules import IDENTIFIERS

# more bytes than all takes that is of no sample: field names, table of buffers, padding; identifiers apart
_FRAMING = 1024
_FRAMING_OF_COLUMN = 96  # the same of each column that need not be there
_NUMBERS = 16  # bytes of a sample's row in the columns that have one row of each
_SPAN = 12
_packed = msgspec.msgpack.Encoder().encode


def split_group(group: ExperienceGroup, max_bytes: int) -> list[ExperienceGroup]:
    """Return the group in pieces whose encoded form has ``max_bytes`` at most; ``join_groups`` is the way back.

    Raises:
        EncodeError: A sample is too large by itself, or there are more pieces than a result may name.
    """
    optional = _row_bytes(group)
    framing = _FRAMING + _FRAMING_OF_COLUMN * len(optional)
    room = max_bytes - framing - sum(len(getattr(group, name).encode()) for name in IDENTIFIERS)
    ends, size = [], 0
    for sample, weight in enumerate(_weights(group, optional)):
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


def _weights(group: ExperienceGroup, optional: Sequence[tuple[list[int], int]]) -> list[int]:
    # The bytes of each sample, rounded up.
    responses = group.lengths - group.prompt_lengths
    spans = np.bincount(group.versions[:, 0], minlength=len(group))
    rows = 4 * group.lengths.astype(np.int64) + 4 * responses + (responses + 7) // 8 + _SPAN * spans + _NUMBERS
    for bounds, size in optional:
        rows += np.diff(bounds) * size
    metrics = map(len, map(_packed, group.metrics or [{}] * len(group)))
    reasons = map(len, map(_packed, group.finish_reasons or [""] * len(group)))
    return [row + text + word for row, text, word in zip(rows.tolist(), metrics, reasons, strict=True)]


def piece(group: ExperienceGroup, first: int, end: int) -> ExperienceGroup:
    """Return the samples from ``first`` to before ``end``."""
    tokens = _slice(group.lengths, first, end)
    responses = _slice(group.lengths - group.prompt_lengths, first, end)
    owners = group.versions[:, 0]
    spans = group.versions[(owners >= first) & (owners < end)] - np.array([first, 0, 0], np.int32)
    return msgspec.structs.replace(
        group,
        tokens=group.tokens[tokens],
        lengths=group.lengths[first:end],
        prompt_lengths=group.prompt_lengths[first:end],
        logprobs=group.logprobs[responses],
        mask_bits=np.packbits(group.mask[responses]),
        rewards=group.rewards[first:end],
        run_ids=group.run_ids[first:end],
        versions=spans,
        metrics=group.metrics[first:end],
        finish_reasons=group.finish_reasons[first:end],
        **_cut(group, first, end),
    )


def _slice(lengths: Int32, first: int, end: int) -> slice:
    # Where the rows of these samples lie in a column that has so many of each.
    begin = int(lengths[:first].sum())
    return slice(begin, begin + int(lengths[first:end].sum()))


def join_groups(parts: Sequence[ExperienceGroup]) -> ExperienceGroup:
    """Return the group of a task that was split over several attempts, in the order of the parts.

    What an optional column says of a part that lacks it is that nobody knows; of routes all parts have some, or the
    whole has none. What is one value for each group (attempt, explorer, incarnation) is that of the first part. A
    single
    part is returned as it is.

    Raises:
        SchemaError: There is none, or they are of several tasks.
    """
    if len({part.task_id for part in parts}) != 1:
        raise SchemaError(f"a group is of one task, got parts of {len({part.task_id for part in parts})}")
    if len(parts) == 1:
        return parts[0]
    first_sample = np.cumsum([0, *(len(part) for part in parts[:-1])])
    return msgspec.structs.replace(
        parts[0],
        tokens=np.concatenate([part.tokens for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        prompt_lengths=np.concatenate([part.prompt_lengths for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        mask_bits=np.packbits(np.concatenate([part.mask for part in parts])),
        rewards=np.concatenate([part.rewards for part in parts]),
        run_ids=np.concatenate([part.run_ids for part in parts]),
        versions=np.concatenate(
            [
                part.versions + np.array([first, 0, 0], np.int32)
                for first, part in zip(first_sample.tolist(), parts, strict=True)
            ]
        ),
        metrics=[metrics for part in parts for metrics in part.metrics],
        finish_reasons=[reason for part in parts for reason in part.finish_reasons],
        **_joined(parts),
    )


def _cut(group: ExperienceGroup, first: int, end: int) -> dict[str, NDArray[Any]]:
    """Return the columns of the samples from ``first`` to before ``end``."""
    if group.is_plain:
        return {}
    bounds = row_bounds(group)
    found = {
        column.name: array[bounds[column.length][first] : bounds[column.length][end]]
        for column, array in present(group)
    }
    if "turn_starts" in found:
        found["turn_starts"] = found["turn_starts"] - np.array([first, 0], np.int32)
    return found


def _joined(parts: Sequence[ExperienceGroup]) -> dict[str, NDArray[Any] | None]:
    """Return the columns of a group that was split, where a part has them; None for those that the whole has not."""
    # What a part lacks is not known of it. Of routes that cannot be said: the whole has them where all parts have.
    if all(part.is_plain for part in parts):
        return {}
    first_samples = np.cumsum([0, *map(len, parts[:-1])]).tolist()
    found: dict[str, NDArray[Any] | None] = {column.name: None for column in OPTIONAL_COLUMNS}
    for column in OPTIONAL_COLUMNS:
        arrays = [getattr(part, column.name) for part in parts]
        known = [array for array in arrays if array is not None]
        if not known:
            continue
        if column.name == "routes":
            if len(known) == len(parts) and len({array.shape[1:] for array in known}) == 1:
                found["routes"] = np.concatenate(known)
            continue
        filled = [_unknown(column, part) if array is None else array for array, part in zip(arrays, parts, strict=True)]
        if column.name == "turn_starts":
            filled = [
                array + np.array([first, 0], np.int32) for array, first in zip(filled, first_samples, strict=True)
            ]
        found[column.name] = np.concatenate(filled)
    return found


def _unknown(column: Column, part: ExperienceGroup) -> NDArray[Any]:
    rows = row_bounds(part)[column.length][-1]
    return np.full((rows, *(size for size in column.tail if isinstance(size, int))), np.nan).astype(column.dtype)


def _row_bytes(group: ExperienceGroup) -> list[tuple[list[int], int]]:
    """Return of each column that there is where the rows of each sample begin, and the bytes of a row."""
    if group.is_plain:
        return []
    bounds = row_bounds(group)
    return [(bounds[column.length], array.itemsize * int(np.prod(array.shape[1:]))) for column, array in present(group)]
