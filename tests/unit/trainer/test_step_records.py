"""Which of what was said of a step binds it when it is taken again, and what another trainer's records say of which
steps can be trained once more.
"""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from schemas import LeftOut, StepBegun, StepGroup
from schemas.topics import STEPS
from tests.support.fakes.mesh_records import part
from tests.support.fakes.received import received as at_place
from tests.support.fakes.steps import begun_step
from trinity_bus.bus import Received, Undecodable
from trinity_bus.training.errors import TrainingError
from workers.trainer.step_log import RecordedSteps, StepRecords, contradicted, first_trainable, gap, otherwise


def begun(**changes: Any) -> StepBegun:
    fields: dict[str, Any] = {"step": 3, "next_offset": 9, "incarnation": "life-2"}
    return begun_step(**fields | {"groups": [StepGroup(task_id="task-1", parts=[part(3)])]} | changes)


def received(record: Any) -> Received[Any]:
    return at_place(record, STEPS, 7, key="trainer-0/3")


def records(*known: StepBegun, trained: int = 2) -> StepRecords:
    found = StepRecords("trainer-0", "run-1", trained)
    for record in known:
        found.take(received(record))
    return found


BEFORE = begun(incarnation="life-1", left_out=[LeftOut(task_id="task-1", reason="greedy", samples=[2])])


def test_a_step_that_is_taken_again_obeys_the_last_record_of_it_once() -> None:
    older = begun(left_out=[LeftOut(task_id="task-1", reason="empty", samples=[0])])
    known = records(older, BEFORE)
    assert known.binding(begun()) == BEFORE
    assert known.binding(begun()) is None


@pytest.mark.parametrize(
    "changes",
    [{"batch_id": "other"}, {"sequence": 4}, {"groups": []}, {"model": "other"}, {"skipped": "an operator said so"}],
)
def test_a_record_of_another_step_binds_nothing(changes: dict[str, Any]) -> None:
    assert records(BEFORE).binding(begun(**changes)) is None
    assert records(begun(**changes)).binding(begun()) is None


def test_records_of_another_run_and_of_steps_that_are_trained_are_passed_over() -> None:
    assert records(begun(run="run-0")).binding(begun()) is None
    assert records(BEFORE, trained=3).binding(begun()) is None
    assert records().binding(begun()) is None


def test_a_record_that_cannot_be_read_ends_the_trainer_if_its_step_may_be_taken_or_learned_from_once_more() -> None:
    record = received(Undecodable(raw=b"", reason="unsupported_version", detail="step_begun: schema_version = 2"))
    with pytest.raises(TrainingError, match=r"steps.*cannot be read .*start a trainer that knows this version"):
        StepRecords("trainer-0", "run-1", 2).take(record)
    earlier = msgspec.structs.replace(record, key="trainer-0/4")
    StepRecords("trainer-0", "run-1", 5, reach=1).take(earlier)
    with pytest.raises(TrainingError, match="or learned from once more"):
        StepRecords("trainer-0", "run-1", 5, reach=2).take(earlier)


def test_what_a_repeated_step_does_otherwise_than_the_settings_say_is_told() -> None:
    left = [LeftOut(task_id="task-1", reason="limited_sampling", samples=[0, 2])]
    assert otherwise(begun(), begun(incarnation="life-3")) == ""
    assert otherwise(begun(seed=1), begun(seed=2)) == "seed 1, now 2"
    assert otherwise(begun(left_out=left), begun(seed=2)) == "seed 0, now 2; leaves out 2, now 0"
    others = [LeftOut(task_id="task-1", reason="limited_sampling", samples=[1, 2])]
    assert otherwise(begun(left_out=left), begun(left_out=others)) == "leaves out 2, now 2 others"


def test_what_may_be_learned_from_once_more_is_known_after_a_restart() -> None:
    def step(number: int, run: str = "run-1") -> Received[Any]:
        record = begun(step=number, next_offset=10 * number, run=run)
        return msgspec.structs.replace(received(record), key=f"trainer-0/{number}")

    found = StepRecords("trainer-0", "run-1", 5, reach=2)
    for number in range(1, 7):
        found.take(step(number, "run-0" if number == 4 else "run-1"))
    assert [record.step for record in found.earlier()] == [5, 6]
    assert found.binding(begun(step=6)) is not None
    found.note(begun(step=6, incarnation="life-3", next_offset=61))
    assert [record.incarnation for record in found.earlier()] == ["life-2", "life-3"]
    found.note(begun(step=7, next_offset=70))
    assert [record.step for record in found.earlier()] == [6, 7]
    # From the checkpoint of step 5 on, step 6 learns from steps 4 and 5: from what follows step 3.
    assert found.needs_from(50) == 30
    assert [found.needs_from(offset) for offset in (20, 0, 55)] == [0, 0, 0], "everything, where it is not known"
    assert StepRecords("trainer-0", "run-1", 5).needs_from(50) == 50


POISON = Undecodable(raw=b"", reason="unsupported_version", detail="step_begun: schema_version = 2")


def group(*offsets: int, partition: int = 0) -> StepGroup:
    return StepGroup(task_id="task", parts=[part(offset, partition=partition) for offset in offsets])


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
