"""What the trainer has still to train on, in the order of the log, and what of it an operator has skipped. Pure.

``batches`` is read ahead of training, because the word to pass over a batch stands behind the batch in the log::

    batches:   FINALIZED 7    FINALIZED 8    BatchSkipped 7
                   |               |              |
                   v               v              v
    agenda:    7: skip         8: train

Whether a skip counts must not depend on when a process was killed. It counts for every batch that is not trained on
when the skip is read; and a step counts as trained from the moment that anybody could hear of it. So a step that is
told of without a checkpoint leaves a note beside the checkpoints (``checkpoint.note_told``), and a trainer that has to
take it again after a crash takes it as it did before, whatever was said of it since.

A batch is trained on exactly when it is a FINALIZED train batch with a place in the order of training: one that ended
without tasks has none, and its sequence is 0. Sequences are 1, 2, 3 ... in the order of the log; one that is not the
next belongs to another history than the checkpoint, and is an error.
"""

import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    BatchSkipped,
    ExperienceGroup,
    ManifestEntry,
    Position,
    ResultPart,
    Rollback,
    StepBegun,
    StepGroup,
)
from schemas.groups.pieces import join_groups
from schemas.record import MAX_REASON_CHARS
from trinity_bus.bus import Received, Undecodable
from trinity_bus.errors import TrinityError
from trinity_bus.training.checkpoint import AnnouncedSteps

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


@dataclass(frozen=True, slots=True)
class Due:
    batch: BatchRecord
    # In ``batches``, of what follows
    next_offset: int
    # Why it is to be passed over; None to train on it
    skip: str | None


class BatchSchedule:
    """``rollback``: the last one of this lineage: the batches that it discards are passed over.

    ``known_through``: the last sequence that is met once more although it is trained, because the topic is read from
    its beginning.
    """

    def __init__(self, told: AnnouncedSteps, rollback: Rollback | None = None, known_through: int = 0) -> None:
        self._known_through = known_through
        self._told = told
        self._rollback = rollback
        self._records: deque[Received[Any]] = deque()
        self._skips: dict[str, BatchSkipped] = {}

    def take(self, received: Received[Any]) -> None:
        if isinstance(received.record, BatchSkipped):
            self._skips[received.record.batch_id] = received.record
        elif not (isinstance(received.record, BatchRecord) and 0 < received.record.sequence <= self._known_through):
            self._records.append(received)

    def next(self, trained_sequence: int) -> Due | None:
        """Return the batch whose turn it is, which leaves the schedule; None where nothing is known to follow."""
        while self._records:
            received = self._records.popleft()
            batch = batch_to_train(received, trained_sequence=trained_sequence)
            if batch is not None:
                return Due(batch, received.offset + 1, self._skip_of(batch))
        return None

    def following(self) -> Iterator[BatchRecord]:
        for received in self._records:
            record = received.record
            if (
                isinstance(record, BatchRecord)
                and record.batch_type == "train"
                and record.state is BatchLifecycleState.FINALIZED
                and record.sequence
            ):
                yield record

    def _skip_of(self, batch: BatchRecord) -> str | None:
        rollback = self._rollback
        if rollback is not None and rollback.to < batch.sequence <= rollback.through:
            return f"rolled back to version {rollback.to}: {rollback.reason}"[:MAX_REASON_CHARS]
        skip, told = self._skips.get(batch.batch_id), self._told
        if skip is None or skip.sequence != batch.sequence:
            return None
        too_late = batch.sequence <= told.sequence and batch.batch_id not in told.skipped
        return None if too_late else skip.reason
