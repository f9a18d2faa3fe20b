"""What another trainer's records on ``steps`` say of which steps can be trained once more."""

from typing import Any

import pytest
from msgspec.structs import replace

from schemas import Position, ResultPart, StepBegun, StepGroup
from tests.unit.trainer.test_step_records import begun, received
from trinity_bus.bus import Undecodable
from workers.trainer.step_log import RecordedSteps, contradicted, first_trainable, gap

POISON = Undecodable(raw=b"", reason="unsupported_version", detail="step_begun: schema_version = 2")


def group(*offsets: int, partition: int = 0) -> StepGroup:
    places = [Position(partition=partition, offset=offset) for offset in offsets]
    return StepGroup(task_id="task", parts=[ResultPart(attempt=1, samples=4, position=at) for at in places])


def step(number: int, *offsets: int, **changes: Any) -> StepBegun:
    return begun(step=number, batch_id=f"batch-{number}", groups=[group(offset) for offset in offsets], **changes)


def known(*records: StepBegun | Undecodable | None) -> RecordedSteps:
    """A record of each step in turn; one that is no record has the key of its step all the same."""
    found = RecordedSteps("trainer-0")
    for offset, record in enumerate(records, 1):
        number = record.step if isinstance(record, StepBegun) else offset
        found.take(replace(received(record), key=f"trainer-0/{number}", offset=offset))
    return found


def test_the_last_record_of_a_step_counts_and_a_tombstone_ends_it() -> None:
    steps = known(step(1, 0), step(2, 4), step(3, 8), step(2, 5, skipped="bad")).of("run-1")
    assert [steps[number].offset for number in (1, 2, 3)] == [1, 4, 3]
    assert steps[2].what == ("batch-2", True)
    forgotten = known(step(1, 0))
    forgotten.take(replace(received(None), key="trainer-0/1"))
    assert forgotten.of("run-1") == {}


def test_the_run_is_that_of_the_newest_record_and_others_are_no_part_of_it() -> None:
    found = known(step(1, 0, run="run-0"), step(2, 4, run="run-0"), step(1, 9))
    assert (found.run, [*found.of("run-1")], [*found.of("run-0")]) == ("run-1", [1], [2])
    found.take(replace(received(step(3, 12, trainer="other")), key="other/3"))
    found.take(replace(received(step(3, 12, trainer="forged")), key="trainer-0/3"))
    assert [*found.of("run-1")] == [1]


def test_what_is_gone_leaves_a_gap_and_the_first_step_behind_it_that_has_a_checkpoint_before_it() -> None:
    steps = known(step(1, 0, 1), step(2, 3, 2), step(3, 5), step(4, 7)).of("run-1")
    assert gap(steps, 1, 4, {0: 0}) is None
    assert gap(steps, 1, 4, {0: 3}) == (1, "its experiences are gone from the log")
    assert gap(steps, 2, 4, {0: 3}) == (2, "its experiences are gone from the log")
    assert gap(steps, 3, 4, {0: 3}) is None
    assert gap(steps, 3, 5, {}) == (5, "its record on steps is gone")
    assert first_trainable(steps, {0, 3, 2}, 4, {0: 3}) == 3
    assert first_trainable(steps, {0, 3}, 4, {0: 3}) == 4
    assert first_trainable(steps, {0}, 4, {0: 0}) == 1
    assert first_trainable(steps, {0, 4}, 4, {0: 3}) is None


def test_what_is_learned_from_once_more_is_needed_too() -> None:
    (said,) = known(step(1, 9, replayed=[group(2, 7), group(1, partition=3)])).of("run-1").values()
    assert said.needs == {0: 2, 3: 1}


def test_a_record_that_cannot_be_read_is_a_gap_only_where_it_is_wanted() -> None:
    steps = known(step(1, 0), POISON, step(3, 4)).of("run-1")
    assert gap(steps, 3, 3, {}) is None
    where, why = gap(steps, 1, 3, {}) or (0, "")
    assert where == 2
    assert "steps/0@2 cannot be read (unsupported_version" in why


@pytest.mark.parametrize(("other", "found"), [({}, None), ({"skipped": "bad"}, 2), ({"batch_id": "another"}, 2)])
def test_a_step_that_the_other_trainer_has_taken_otherwise_since_is_found(
    other: dict[str, Any], found: int | None
) -> None:
    own = known(step(1, 0), step(2, 4), step(3, 8)).of("run-1")
    theirs = known(step(1, 0), step(2, 4).model_copy(update=other), step(3, 8, skipped="bad")).of("run-1")
    assert contradicted(own, theirs, 2) == found
