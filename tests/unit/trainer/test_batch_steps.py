"""What is said when experiences are gone: of a batch whose turn it is, and of earlier ones that a step began with."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas import BatchLifecycleState, BatchRecord, ManifestEntry, Position, ResultPart, StepBegun
from schemas.groups.trainable import Bounds
from schemas.topic import Topic
from tests.support.fakes.trainer_context import context_of
from tests.unit.trainer.test_step_records import begun
from trinity_bus.errors import RecordGoneError
from workers.trainer.batch_schedule import BatchError, Due
from workers.trainer.batch_steps import BatchSteps


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


def batch(sequence: int, offset: int | None) -> BatchRecord:
    parts = [] if offset is None else [ResultPart(attempt=1, samples=4, position=Position(partition=0, offset=offset))]
    return BatchRecord(
        batch_id=f"batch-{sequence}",
        batch_type="train",
        state=BatchLifecycleState.FINALIZED,
        sequence=sequence,
        manifest=[ManifestEntry(task_id=f"task-{sequence}", status="completed" if parts else "failed", parts=parts)],
    )


def inputs(*following: BatchRecord) -> BatchSteps:
    fake = FakeGap()
    return BatchSteps(
        context_of(steps=fake, bus=fake),
        bounds=Bounds(32, 128),
        schedule=cast("Any", SimpleNamespace(following=lambda: following)),
        batches=cast("Any", None),
    )


@pytest.mark.parametrize(
    ("following", "left"),
    [
        ([batch(4, 7), batch(5, 9)], "the first that can still be is 5"),
        ([batch(4, 7)], "no later one is known that can be"),
    ],
)
async def test_who_meets_what_is_gone_is_told_of_the_first_step_that_can_still_be_trained(
    following: list[BatchRecord], left: str
) -> None:
    with pytest.raises(BatchError) as of_its_own:
        await inputs(*following).fetch(batch(3, 2))
    assert str(of_its_own.value).startswith("batch batch-3, step 3, cannot be trained on: experiences/0@2 is gone; ")
    with pytest.raises(BatchError) as of_earlier:
        await inputs(*following).choose(Due(batch(3, None), 9, None), 3, [])
    assert str(of_earlier.value).startswith(
        "step 3 was begun with experiences of earlier batches, and cannot be trained as it was: experiences/0@3 is gone"
    )
    for said in (of_its_own.value, of_earlier.value):
        assert str(said).endswith(
            f"; {left}; `trinity-bus batches skip batch-3 --reason ...` has the trainer pass over it"
        )
