from typing import Any

from msgspec.structs import replace

from schemas import LeftOut, Position, ResultPart, StepGroup
from schemas.topics import EXPERIENCES
from tests.support.fakes.experiences import make_group
from tests.unit.trainer.test_step_records import begun, received
from trinity_bus.bus import Received
from trinity_bus.view.lineage import lineage_of

TRACE = "0af7651916cd43dd8448eb211c80319c"


def part(offset: int, attempt: int = 1) -> ResultPart:
    return ResultPart(attempt=attempt, samples=4, position=Position(partition=3, offset=offset))


def lying(record: Any) -> Received[Any]:
    return replace(received(record), topic=EXPERIENCES, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")


def test_samples_of_split_groups_are_counted_through_and_what_is_gone_is_told_of() -> None:
    step = begun(
        groups=[
            StepGroup(task_id="split", parts=[part(1), part(2, attempt=2)]),
            StepGroup(task_id="gone", parts=[part(3), part(4)]),
        ],
        replayed=[StepGroup(task_id="older", parts=[part(5)])],
        left_out=[LeftOut(task_id="split", reason="greedy", samples=[0, 5])],
        demonstrations=[Position(partition=0, offset=8)],
    )
    groups = {offset: make_group(seed=offset, version=offset) for offset in (1, 2, 3, 5)}
    found = {(3, offset): lying(group) for offset, group in groups.items()}
    told = lineage_of(step, found, checkpoint="step-00000003", digests={"model.safetensors": "5e"}, seal="")
    split, gone, older = told.tasks
    assert (split.attempts, split.places, split.traces) == ([1, 2], ["experiences/3@1", "experiences/3@2"], [TRACE])
    assert [sample.sample for sample in split.samples] == [*range(8)]
    assert [sample.sample for sample in split.samples if sample.left_out] == [0, 5]
    assert (split.versions, split.left_out, split.count) == ([1, 2], 2, 8)
    assert (gone.samples, gone.count, gone.versions) == ([], 8, [])
    assert [task.once_more for task in told.tasks] == [False, False, True]
    assert [sample.tokens for sample in older.samples] == groups[5].lengths.tolist()
    assert told.examples == ["demonstrations/0@8"]
    assert (told.weights, told.checkpoint, told.checkpoint_seal) == (None, "step-00000003", None)
