"""What strangers leave on ``steps``, a topic that is kept for good, and every trainer reads from its beginning."""

import pytest

from schemas import LeftOut
from schemas.topics import STEPS
from tests.support.fakes.received import received
from tests.support.fakes.steps import begun_step
from trinity_bus.bus import Undecodable
from workers.trainer.step_log import StepRecords

POISON = Undecodable(raw=b"", reason="unsupported_version", detail="step_begun: schema_version = 2")


@pytest.mark.parametrize("key", ["neighbour/3", "trainer-0/2", "trainer-0/x", "trainer-0/3/3", "", None])
def test_a_poison_record_of_no_step_to_be_taken_stops_no_trainer(key: str | None) -> None:
    known = StepRecords("trainer-0", "run-1", 2)
    known.take(received(POISON, STEPS, key=key))
    assert known.binding(begun_step(3)) is None


@pytest.mark.parametrize(("trainer", "key"), [("neighbour", "neighbour/3"), ("trainer-0", "neighbour/3")])
def test_what_another_trainer_says_of_this_run_leaves_nothing_out(trainer: str, key: str) -> None:
    forged = begun_step(3, trainer=trainer, left_out=[LeftOut(task_id="task-1", reason="greedy", samples=[0, 1, 2, 3])])
    known = StepRecords("trainer-0", "run-1", 2)
    known.take(received(forged, STEPS, key=key))
    assert known.binding(begun_step(3)) is None
