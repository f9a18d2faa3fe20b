"""What a record of ``batches`` asks of the trainer, and whether the experiences are those its manifest names. Pure.

A batch is trained on exactly when it is a FINALIZED train batch with a place in the order of training: one that ended
without tasks has none, and its sequence is 0. Sequences are 1, 2, 3 ... in the order of the log; one that is not the
next belongs to another history than the checkpoint, and is an error.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    ExperienceGroup,
    ManifestEntry,
    Position,
    ResultPart,
    StepBegun,
    StepGroup,
)
from schemas.groups.pieces import join_groups
from trinity_bus.bus import Received, Undecodable
from trinity_bus.errors import TrinityError

# What names the experiences of a task: a manifest, or the record of a step
type Entry = ManifestEntry | StepGroup


class BatchError(TrinityError):
    """A batch cannot be trained on as its manifest says. To skip it is for an operator to say."""


def way_out(batch_id: str) -> str:
    # As the end of a message
    return f"`trinity-bus batches skip {shlex.quote(str(batch_id))} --reason ...` has the trainer pass over it"


def batch_to_train(received: Received[Any], *, trained_sequence: int) -> BatchRecord | None:
    """None where the record asks for nothing; BatchError where it cannot be read, or is of another history."""
    record = received.record
    if isinstance(record, Undecodable):
        raise BatchError(
            f"{received.place} cannot be read ({record.reason}: {record.detail}), and it may be a batch to train on: "
            "start a trainer that knows this version of the records"
        )
    if not isinstance(record, BatchRecord):
        return None
    if record.batch_type != "train" or record.state is not BatchLifecycleState.FINALIZED:
        return None
    if record.sequence == 0 and not record.manifest:
        return None
    if record.sequence != trained_sequence + 1:
        raise BatchError(
            f"{received.place}: batch {record.batch_id} is number {record.sequence}, but number {trained_sequence} was "
            "trained on last: the checkpoints are of another run; give this one its own TRINITY_BUS_TRAINER__"
            "CHECKPOINT_DIR, or its own TRINITY_BUS_MESH__NAMESPACE"
        )
    return record


def entries_to_train(batch: BatchRecord) -> list[ManifestEntry]:
    """Failed and aborted tasks have no experiences that count."""
    return [entry for entry in batch.manifest if entry.parts]


def positions_of(batch: BatchRecord | StepBegun, entries: Sequence[Entry]) -> list[Position]:
    """Part after part; BatchError where one has no place in the log."""
    positions = []
    for entry in entries:
        for part in entry.parts:
            if part.position is None:
                raise BatchError(
                    f"batch {batch.batch_id}: attempt {part.attempt} at task {entry.task_id} counts, but the manifest "
                    f"does not say where its experiences lie; {way_out(batch.batch_id)}"
                )
            positions.append(part.position)
    return positions


def first_replayable(batches: Iterable[BatchRecord], kept_from: Mapping[int, int]) -> BatchRecord | None:
    # ``kept_from``: of each partition of ``experiences`` the first offset that is left
    def is_kept(batch: BatchRecord) -> bool:
        positions = [part.position for entry in entries_to_train(batch) for part in entry.parts]
        return all(at is not None and at.offset >= kept_from.get(at.partition, 0) for at in positions)

    return next(filter(is_kept, batches), None)


def groups_of(
    batch: BatchRecord | StepBegun, entries: Sequence[Entry], fetched: Sequence[Received[Any]]
) -> list[ExperienceGroup]:
    """Check each part of ``fetched``, which lies at ``positions_of`` the entries, against what names it."""
    records = iter(fetched)
    return [join_groups([_part_of(batch, entry, part, next(records)) for part in entry.parts]) for entry in entries]


def _part_of(
    batch: BatchRecord | StepBegun, entry: Entry, part: ResultPart, received: Received[Any]
) -> ExperienceGroup:
    record, where = received.record, f"batch {batch.batch_id}: the experience at {received.place}"
    if isinstance(record, Undecodable):
        raise BatchError(f"{where} cannot be read ({record.reason}: {record.detail}); {way_out(batch.batch_id)}")
    if not isinstance(record, ExperienceGroup):
        raise BatchError(f"{where} is no experience but {type(record).__name__}; {way_out(batch.batch_id)}")
    found = (record.task_id, record.attempt, len(record))
    named = (entry.task_id, part.attempt, part.samples)
    if found != named:
        raise BatchError(
            f"{where} has (task, attempt, samples) = {found}, the manifest says {named}; {way_out(batch.batch_id)}"
        )
    return record
