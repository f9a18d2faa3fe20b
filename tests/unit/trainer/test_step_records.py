"""Which of what was said of a step binds it when it is taken again."""

from typing import Any

import msgspec
import pytest

from schemas import LeftOut, Position, ResultPart, StepBegun, StepGroup
from schemas.topics import STEPS
from tests.support.fakes.received import received as at_place
from tests.support.fakes.steps import begun_step
from trinity_bus.bus import Received, Undecodable
from trinity_bus.training.errors import TrainingError
from workers.trainer.step_log import StepRecords, otherwise


def begun(**changes: Any) -> StepBegun:
    part = ResultPart(attempt=1, samples=4, position=Position(partition=0, offset=3))
    fields: dict[str, Any] = {
        "step": 3,
        "batch_id": "batch-3",
        "sequence": 3,
        "next_offset": 9,
        "incarnation": "life-2",
        "groups": [StepGroup(task_id="task-1", parts=[part])],
    }
    return begun_step(**fields | changes)


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


def test_a_record_that_cannot_be_read_ends_the_trainer() -> None:
    unreadable = Undecodable(raw=b"", reason="unsupported_version", detail="step_begun: schema_version = 2")
    with pytest.raises(TrainingError, match=r"steps.*cannot be read .*start a trainer that knows this version"):
        StepRecords("trainer-0", "run-1", 2).take(received(unreadable))


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


def test_a_record_that_cannot_be_read_matters_if_its_step_may_be_learned_from_once_more() -> None:
    record = received(Undecodable(raw=b"", reason="bad_value", detail="why"))
    unreadable = msgspec.structs.replace(record, key="trainer-0/4")
    StepRecords("trainer-0", "run-1", 5, reach=1).take(unreadable)
    with pytest.raises(TrainingError, match="or learned from once more"):
        StepRecords("trainer-0", "run-1", 5, reach=2).take(unreadable)
