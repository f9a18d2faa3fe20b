from typing import Any

import pytest

from schemas import BatchLifecycleState, BatchRecord, ExperienceGroup, ManifestEntry, Position, ResultPart, Task
from schemas.topic import Topic
from schemas.topics import BATCHES, EXPERIENCES
from tests.support.fakes.experiences import make_group
from tests.support.fakes.received import received as at_place
from trinity_bus.bus import Received, Undecodable
from workers.trainer.batch_schedule import (
    BatchError,
    batch_to_train,
    entries_to_train,
    first_replayable,
    groups_of,
    positions_of,
)


def received(record: Any, topic: Topic = BATCHES, offset: int = 7) -> Received[Any]:
    return at_place(record, topic, offset)


def batch(**changes: Any) -> BatchRecord:
    values: dict[str, Any] = {
        "batch_id": "batch-3",
        "batch_type": "train",
        "state": BatchLifecycleState.FINALIZED,
        "sequence": 3,
        "expected_task_count": 2,
        "manifest": [
            ManifestEntry(
                task_id="task-a",
                status="completed",
                parts=[ResultPart(attempt=1, samples=4, position=Position(partition=0, offset=1))],
            ),
            ManifestEntry(task_id="task-b", status="failed", error="TimeoutError"),
        ],
    }
    return BatchRecord(**{**values, **changes})


def test_a_finalized_train_batch_is_trained() -> None:
    assert batch_to_train(received(batch()), trained_sequence=2) == batch()


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(batch(batch_type="eval", sequence=0), id="eval"),
        pytest.param(batch(sequence=0, expected_task_count=0, manifest=[]), id="ended without tasks"),
        *(
            pytest.param(batch(state=state), id=state.value)
            for state in BatchLifecycleState
            if state is not BatchLifecycleState.FINALIZED
        ),
        pytest.param(None, id="tombstone"),
        pytest.param(Task(task_id="t", workflow="w", prompt="p"), id="another record"),
    ],
)
def test_what_asks_for_nothing(record: Any) -> None:
    assert batch_to_train(received(record), trained_sequence=2) is None


@pytest.mark.parametrize("trained", [0, 1, 3, 50])
def test_another_history_is_an_error_and_not_skipped(trained: int) -> None:
    with pytest.raises(
        BatchError, match=rf"batches/0@7: batch batch-3 is number 3, but number {trained} was trained on .*another run"
    ):
        batch_to_train(received(batch()), trained_sequence=trained)


def test_what_cannot_be_read_might_have_been_a_batch() -> None:
    with pytest.raises(BatchError, match=r"batches/0@7 cannot be read .unsupported_version: version 9"):
        batch_to_train(received(Undecodable(b"", "unsupported_version", "version 9")), trained_sequence=0)


def test_the_parts_of_a_split_task_are_one_group() -> None:
    first, second = make_group(task_id="task-a"), make_group(task_id="task-a", attempt=2, rewards=[0.0, 1.0])
    parts = [
        ResultPart(attempt=1, samples=4, position=Position(partition=0, offset=1)),
        ResultPart(attempt=2, samples=2, position=Position(partition=0, offset=9)),
    ]
    split = batch(manifest=[ManifestEntry(task_id="task-a", status="completed", parts=parts)])
    entries = entries_to_train(split)
    assert positions_of(split, entries) == [Position(partition=0, offset=1), Position(partition=0, offset=9)]
    [group] = groups_of(split, entries, [received(first, EXPERIENCES), received(second, EXPERIENCES)])
    assert group.rewards.tolist() == [*first.rewards.tolist(), 0.0, 1.0]


def test_a_part_without_a_place_cannot_be_trained_on() -> None:
    nowhere = batch(
        manifest=[ManifestEntry(task_id="task-a", status="completed", parts=[ResultPart(attempt=1, samples=4)])]
    )
    with pytest.raises(BatchError, match="attempt 1 at task task-a counts, but the manifest does not say where"):
        positions_of(nowhere, entries_to_train(nowhere))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        pytest.param(
            make_group(task_id="task-x"), r"\('task-x', 1, 4\), the manifest says \('task-a', 1, 4\)", id="task"
        ),
        pytest.param(make_group(task_id="task-a", rewards=[0.0, 1.0]), r"\('task-a', 1, 2\)", id="samples"),
        pytest.param(Undecodable(b"", "bad_buffer", "tokens"), "cannot be read .bad_buffer: tokens", id="broken"),
        pytest.param(batch(), "is no experience but BatchRecord", id="another record"),
    ],
)
def test_an_experience_that_is_not_what_the_manifest_says(record: ExperienceGroup | Undecodable, message: str) -> None:
    with pytest.raises(
        BatchError,
        match=rf"batch batch-3: the experience at experiences/0@1 .*{message}.*`trinity-bus batches skip batch-3",
    ):
        groups_of(batch(), entries_to_train(batch()), [received(record, EXPERIENCES, offset=1)])


def test_the_first_batch_that_can_still_be_replayed_has_all_its_experiences_in_the_log() -> None:
    def at(sequence: int, *offsets: int) -> BatchRecord:
        parts = [ResultPart(attempt=1, samples=4, position=Position(partition=0, offset=offset)) for offset in offsets]
        return batch(sequence=sequence, manifest=[ManifestEntry(task_id="task-a", status="completed", parts=parts)])

    batches = [at(3, 1, 9), at(4, 10, 7), at(5, 8, 12), at(6, 20)]
    assert first_replayable(batches, {0: 8}) == batches[2]
    assert first_replayable(batches, {0: 21}) is None
    assert first_replayable(batches, {}) == batches[0]
    assert first_replayable([], {0: 8}) is None
