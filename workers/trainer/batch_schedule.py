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
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from schemas import BatchLifecycleState, BatchRecord, BatchSkipped, Rollback
from schemas.skipped import MAX_REASON_CHARS
from trinity_bus.bus import Received
from trinity_bus.training.checkpoint import AnnouncedSteps
from workers.trainer.manifest import batch_to_train


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
