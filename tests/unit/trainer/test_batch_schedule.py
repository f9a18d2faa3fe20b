"""What is trained on next, and what of it was skipped."""

from typing import Any

import pytest

from schemas import BatchLifecycleState, BatchRecord, BatchSkipped, ManifestEntry
from schemas.topics import BATCHES
from tests.support.fakes.received import received
from trinity_bus.bus import Undecodable
from trinity_bus.training.checkpoint import AnnouncedSteps
from workers.trainer.batch_schedule import BatchError, BatchSchedule


def finalized(sequence: int) -> BatchRecord:
    return BatchRecord(
        batch_id=f"batch-{sequence}",
        batch_type="train",
        state=BatchLifecycleState.FINALIZED,
        sequence=sequence,
        manifest=[ManifestEntry(task_id="t", status="failed")],
    )


def skipped(sequence: int, **changes: Any) -> BatchSkipped:
    values = {"batch_id": f"batch-{sequence}", "sequence": sequence, "reason": "poison", "client": "me", **changes}
    return BatchSkipped(**values)


def agenda(*records: Any, told: AnnouncedSteps | None = None) -> BatchSchedule:
    made = BatchSchedule(told or AnnouncedSteps())
    for offset, record in enumerate(records):
        made.take(received(record, BATCHES, offset))
    return made


def order(made: BatchSchedule, trained: int = 0) -> list[tuple[int, int, str | None]]:
    """(sequence, next offset, skip) of all that is due."""
    found = []
    while (due := made.next(trained)) is not None:
        trained = due.batch.sequence
        found.append((trained, due.next_offset, due.skip))
    return found


def test_a_skip_counts_wherever_it_stands_before_its_batch_is_trained() -> None:
    running = finalized(1).model_copy(update={"state": BatchLifecycleState.RUNNING, "sequence": 0})
    made = agenda(running, finalized(1), finalized(2), skipped(1), finalized(3))
    assert order(made) == [(1, 2, "poison"), (2, 3, None), (3, 5, None)]
    assert made.next(3) is None
    made.take(received(finalized(4), BATCHES, 5))
    made.take(received(skipped(4), BATCHES, 6))
    assert order(made, 3) == [(4, 6, "poison")]


def test_a_skip_of_another_batch_changes_nothing() -> None:
    made = agenda(finalized(1), skipped(2, batch_id="batch-1"), skipped(1, batch_id="batch-x"))
    assert order(made) == [(1, 1, None)]


def test_what_was_told_of_before_a_crash_is_repeated_as_it_was() -> None:
    records = [finalized(1), finalized(2), finalized(3), *(skipped(sequence) for sequence in (1, 2, 3))]
    told = AnnouncedSteps(sequence=2, skipped=frozenset({"batch-2"}))
    assert order(agenda(*records, told=told)) == [(1, 1, None), (2, 2, "poison"), (3, 3, "poison")]


def test_a_gap_is_another_history_and_what_cannot_be_read_waits_for_its_turn() -> None:
    with pytest.raises(BatchError, match="is number 3, but number 1 was trained on last: the checkpoints are of"):
        order(agenda(finalized(1), finalized(3)))
    made = agenda(finalized(1), Undecodable(b"", "unsupported_version", "version 9"))
    assert made.next(0) is not None
    with pytest.raises(BatchError, match="cannot be read"):
        made.next(1)


def test_what_follows_are_the_train_batches_that_are_known() -> None:
    agenda = BatchSchedule(AnnouncedSteps())
    running = finalized(9).model_copy(update={"state": BatchLifecycleState.RUNNING})
    evaluated = finalized(9).model_copy(update={"batch_type": "eval"})
    for offset, record in enumerate([finalized(1), running, finalized(2), evaluated, skipped(2), finalized(3)]):
        agenda.take(received(record, BATCHES, offset))
    assert agenda.next(0) is not None
    assert [batch.sequence for batch in agenda.following()] == [2, 3]
