"""What a shadow fetches of a step while the one before it is trained."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from schemas import Position, ResultPart, StepBegun, StepGroup
from schemas.topic import Topic
from schemas.topics import EXPERIENCES, STEPS
from tests.support.fakes.experiences import make_group
from tests.support.fakes.trainer_context import context_of
from tests.unit.trainer.test_step_records import begun, received
from trinity_bus.bus import Received
from trinity_bus.config import TrainerSettings
from trinity_bus.errors import RecordGoneError
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import Follows, TrainingProgress
from workers.trainer.shadow import ShadowSteps

GROUP = make_group(seed=1, task_id="task-1")
PART = ResultPart(attempt=GROUP.attempt, samples=len(GROUP), position=Position(partition=0, offset=3))
THEIRS = begun(groups=[StepGroup(task_id="task-1", parts=[PART])])


class FakeLog:
    """A bus that has one step and one group, a topic's reader and a trainer's own steps."""

    def __init__(self) -> None:
        self.steps = [received(THEIRS)]
        self.fetched: list[str] = []
        self.gone = False

    async def fetch(self, topic: Topic, _positions: Sequence[Position]) -> list[Received[Any]]:
        self.fetched.append(topic.name)
        if self.gone:
            raise RecordGoneError("deleted by retention")
        return [self.steps[-1] if topic is STEPS else received(GROUP)]

    async def beginning_offsets(self, _topic: Topic) -> dict[int, int]:
        return {}

    async def replay(self) -> Any:
        for each in self.steps:
            yield each

    async def batch(self, _seconds: float) -> list[Received[Any]]:
        return self.steps[-1:]

    async def begin(self, chosen: StepBegun) -> StepBegun:
        return chosen


async def opened(log: FakeLog, folder: Path) -> ShadowSteps:
    trainer = TrainerSettings(name="shadow-0", role="shadow", shadows="trainer-0", checkpoint_dir=folder)
    own = SimpleNamespace(trainer="shadow-0", run="own", begin=log.begin)
    around = context_of(trainer, directory=folder, bus=log, steps=own)
    folder.mkdir()
    checkpoint.note_follows(folder, Follows(trainer="trainer-0", run="run-1"))
    source = ShadowSteps(around, cast("Any", log))
    progress = TrainingProgress(step=2)
    await source.open(progress)
    return source


async def test_what_was_fetched_ahead_is_not_fetched_again(tmp_path: Path) -> None:
    log = FakeLog()
    source = await opened(log, tmp_path / "shadow")
    await source.look_ahead(3)
    assert log.fetched == [STEPS.name, EXPERIENCES.name]
    taken = await source.begin(3)
    assert (taken.begun.trainer, taken.begun.follows) == ("shadow-0", "trainer-0")
    assert (taken.begun.groups, len(taken.groups)) == (THEIRS.groups, 1)
    assert len(log.fetched) == 2
    await source.begin(3)
    assert len(log.fetched) == 4, "it is kept for one step"


async def test_a_step_that_is_taken_otherwise_meanwhile_is_fetched_anew(tmp_path: Path) -> None:
    log = FakeLog()
    source = await opened(log, tmp_path / "shadow")
    await source.look_ahead(3)
    log.steps.append(replace(received(begun(seed=7, groups=THEIRS.groups)), offset=8))
    await source._read()
    assert (await source.begin(3)).begun.seed == 7
    assert len(log.fetched) == 4


async def test_ahead_nothing_is_said_of_what_is_not_there(tmp_path: Path) -> None:
    log = FakeLog()
    source = await opened(log, tmp_path / "shadow")
    await source.look_ahead(4)
    assert log.fetched == []
    log.gone = True
    await source.look_ahead(3)
    with pytest.raises(Exception, match="step 3 cannot be trained once more: deleted by retention"):
        await source.begin(3)
