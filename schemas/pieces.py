"""A group that is too large for one record, in several: the inverse of :func:`schemas.experience.join_groups`. Pure.

::

    group --split_group--> pieces: whole samples, in their order --one record each--> join_groups --> group

The limit of a record is the cluster's (``mesh.max_record_mib``); what is cut are samples, and one that is larger by
itself is an error. Two neighbours together are larger than the limit, or they would be one piece, so there are never
many: a group has ``ExperienceGroup.MAX_BYTES`` at most.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from schemas.errors import EncodeError
from schemas.experience import MAX_PIECES, ExperienceGroup, Int32
from schemas.group_rules import IDENTIFIERS
from schemas.optional_columns import cut, row_bytes

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
    optional = row_bytes(group)
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
        **cut(group, first, end),
    )


def _slice(lengths: Int32, first: int, end: int) -> slice:
    # Where the rows of these samples lie in a column that has so many of each.
    begin = int(lengths[:first].sum())
    return slice(begin, begin + int(lengths[first:end].sum()))
