"""What is trained on next, what of it was skipped, and what a manifest names: that it is there, and what was said."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    BatchSkipped,
    ExperienceGroup,
    Position,
    ResultPart,
    StepBegun,
    Task,
)
from schemas.groups.trainable import Bounds
from schemas.topic import Topic
from schemas.topics import BATCHES, EXPERIENCES
from tests.support.fakes.experiences import make_group
from tests.support.fakes.mesh_records import entry, finalized, part
from tests.support.fakes.received import received
from tests.support.fakes.trainer_context import context_of
from tests.unit.trainer.test_step_records import begun
from trinity_bus.bus import Undecodable
from trinity_bus.errors import RecordGoneError
from trinity_bus.training.checkpoint import AnnouncedSteps
from trinity_bus.training.steps import choice
from workers.trainer.batch_schedule import (
    BatchError,
    BatchSchedule,
    Due,
    batch_to_train,
    entries_to_train,
    first_replayable,
    groups_of,
    positions_of,
)
from workers.trainer.batch_steps import BatchSteps


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
    running = at(9).model_copy(update={"state": BatchLifecycleState.RUNNING, "sequence": 0})
    evaluated = at(9).model_copy(update={"batch_type": "eval"})
    made = agenda(running, at(1), at(2), skipped(1), evaluated, at(3))
    assert [batch.sequence for batch in made.following()] == [1, 2, 3]
    assert order(made) == [(1, 2, "poison"), (2, 3, None), (3, 6, None)]
    assert made.next(3) is None
    made.take(received(at(4), BATCHES, 6))
    made.take(received(skipped(4), BATCHES, 7))
    assert order(made, 3) == [(4, 7, "poison")]


def test_a_skip_of_another_batch_changes_nothing() -> None:
    made = agenda(at(1), skipped(2, batch_id="batch-1"), skipped(1, batch_id="batch-x"))
    assert order(made) == [(1, 1, None)]


def test_what_was_told_of_before_a_crash_is_repeated_as_it_was() -> None:
    records = [at(1), at(2), at(3), *(skipped(sequence) for sequence in (1, 2, 3))]
    told = AnnouncedSteps(sequence=2, skipped=frozenset({"batch-2"}))
    assert order(agenda(*records, told=told)) == [(1, 1, None), (2, 2, "poison"), (3, 3, "poison")]


def test_a_gap_is_another_history_and_what_cannot_be_read_waits_for_its_turn() -> None:
    with pytest.raises(BatchError, match="is number 3, but number 1 was trained on last: the checkpoints are of"):
        order(agenda(at(1), at(3)))
    made = agenda(at(1), Undecodable(b"", "unsupported_version", "version 9"))
    assert made.next(0) is not None
    with pytest.raises(BatchError, match="cannot be read"):
        made.next(1)


def batch(**changes: Any) -> BatchRecord:
    return finalized(**{"sequence": 3, "manifest": [entry("task-a", part(1)), entry("task-b")], **changes})


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
def test_a_finalized_train_batch_is_trained_and_nothing_else_is(record: Any) -> None:
    assert batch_to_train(received(record, BATCHES), trained_sequence=2) is None
    assert batch_to_train(received(batch(), BATCHES), trained_sequence=2) == batch()


@pytest.mark.parametrize("trained", [0, 1, 3, 50])
def test_another_history_is_an_error_and_not_skipped(trained: int) -> None:
    with pytest.raises(
        BatchError, match=rf"batches/0@7: batch batch-3 is number 3, but number {trained} was trained on .*another run"
    ):
        batch_to_train(received(batch(), BATCHES, 7), trained_sequence=trained)


def test_what_cannot_be_read_might_have_been_a_batch() -> None:
    unreadable = Undecodable(b"", "unsupported_version", "version 9")
    with pytest.raises(BatchError, match=r"batches/0@7 cannot be read .unsupported_version: version 9"):
        batch_to_train(received(unreadable, BATCHES, 7), trained_sequence=0)


def test_the_parts_of_a_split_task_are_one_group() -> None:
    first, second = make_group(task_id="task-a"), make_group(task_id="task-a", attempt=2, rewards=[0.0, 1.0])
    split = batch(manifest=[entry("task-a", part(1), part(9, 2, attempt=2))])
    entries = entries_to_train(split)
    assert positions_of(split, entries) == [Position(partition=0, offset=1), Position(partition=0, offset=9)]
    [group] = groups_of(split, entries, [received(first, EXPERIENCES), received(second, EXPERIENCES)])
    assert group.rewards.tolist() == [*first.rewards.tolist(), 0.0, 1.0]


def test_a_part_without_a_place_cannot_be_trained_on() -> None:
    nowhere = batch(manifest=[entry("task-a", ResultPart(attempt=1, samples=4))])
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


def at(sequence: int, *offsets: int) -> BatchRecord:
    return finalized(sequence, manifest=[entry(f"task-{sequence}", *map(part, offsets))])


def test_the_first_batch_that_can_still_be_replayed_has_all_its_experiences_in_the_log() -> None:
    batches = [at(3, 1, 9), at(4, 10, 7), at(5, 8, 12), at(6, 20)]
    assert first_replayable(batches, {0: 8}) == batches[2]
    assert first_replayable(batches, {0: 21}) is None
    assert first_replayable(batches, {}) == batches[0]
    assert first_replayable([], {0: 8}) is None


class FakeGap:
    """A bus whose experiences below offset 8 are deleted, and steps of which the third was begun before."""

    trainer, run = "trainer-0", "run-1"

    async def fetch(self, topic: Topic, positions: Sequence[Position]) -> list[Any]:
        for position in positions:
            if position.offset < 8:
                raise RecordGoneError(f"{topic.name}/0@{position.offset} is gone")
        return []

    async def beginning_offsets(self, _topic: Topic) -> dict[int, int]:
        return {0: 8}

    def passed_over(self) -> list[Any]:
        return []

    async def begin(self, chosen: StepBegun) -> StepBegun:
        return begun(step=chosen.step, replayed=begun().groups)


@pytest.mark.parametrize(
    ("following", "left"),
    [
        ([at(4, 7), at(5, 9)], "the first that can still be is 5"),
        ([at(4, 7)], "no later one is known that can be"),
    ],
)
async def test_who_meets_what_is_gone_is_told_of_the_first_step_that_can_still_be_trained(
    following: list[BatchRecord], left: str
) -> None:
    schedule, batches = cast("Any", SimpleNamespace(following=lambda: following)), cast("Any", None)
    steps = BatchSteps(
        context_of(steps=FakeGap(), bus=FakeGap()), bounds=Bounds(32, 128), schedule=schedule, batches=batches
    )
    with pytest.raises(BatchError) as of_its_own:
        await steps.fetch(at(3, 2))
    assert str(of_its_own.value).startswith("batch batch-3, step 3, cannot be trained on: experiences/0@2 is gone; ")
    with pytest.raises(BatchError) as of_earlier:
        await steps.choose(Due(at(3), 9, None), 3, [])
    assert str(of_earlier.value).startswith(
        "step 3 was begun with experiences of earlier batches, and cannot be trained as it was: experiences/0@3 is gone"
    )
    for said in (of_its_own.value, of_earlier.value):
        assert str(said).endswith(
            f"; {left}; `trinity-bus batches skip batch-3 --reason ...` has the trainer pass over it"
        )


async def test_what_is_left_out_is_looked_for_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "left_out", lambda *_, **__: threading.get_ident())
    steps = BatchSteps(context_of(), bounds=Bounds(32, 128), schedule=cast("Any", None), batches=cast("Any", None))
    found: object = await steps._left_out([make_group()])
    assert found != threading.get_ident()
