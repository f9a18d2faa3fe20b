"""What a replay trains with which settings, and that nothing of it is the live run's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from schemas import ExperienceGroup, Position
from schemas.topic import Topic
from schemas.topics import STEPS
from tests.support.fakes.experiences import make_group
from tests.unit.trainer.test_step_records import begun, received
from trinity_bus.bus import Received
from trinity_bus.config import Settings, TrainerSettings, WrongSettingsError
from trinity_bus.errors import ConfigError
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.errors import CheckpointError, TrainingError
from workers.preconditions import problems
from workers.trainer.replay import ReplayRequest, ensure_taught, parts_of
from workers.trainer.step_log import Recorded

LIVE: dict[str, Any] = {"checkpoint_dir": Path("live"), "export_dir": Path("model"), "total_steps": 100}


def settings(**trainer: Any) -> Settings:
    return Settings().model_copy(update={"trainer": TrainerSettings(**LIVE | trainer)})


def request(**changes: Any) -> ReplayRequest:
    return ReplayRequest(settings(), settings(**changes), "replay-12", Path("own"), 12)


def told(parts: list[Settings]) -> list[tuple[int | None, str]]:
    return [(part.trainer.total_steps, part.trainer.loss) for part in parts]


def test_what_lies_before_the_first_changed_step_is_trained_as_it_was() -> None:
    asked = request(loss="gspo")
    assert asked.changes == ["trainer.loss: ppo -> gspo"]
    assert told(parts_of(asked, changes=True, begin=8, last=20)) == [(11, "ppo"), (20, "gspo")]
    assert told(parts_of(asked, changes=True, begin=11, last=20)) == [(20, "gspo")]
    assert told(parts_of(asked, changes=True, begin=15, last=20)) == [(20, "gspo")], "it was killed and begins again"
    assert told(parts_of(asked, changes=True, begin=20, last=20)) == []
    assert told(parts_of(request(), changes=False, begin=8, last=20)) == [(20, "ppo")]


def test_a_replay_is_a_shadow_that_ends_and_has_names_and_folders_of_its_own() -> None:
    (part,) = parts_of(request(), changes=False, begin=0, last=20)
    own = part.trainer
    assert (own.role, own.shadows, own.name, own.total_steps) == ("shadow", "trainer-0", "replay-12", 20)
    assert (own.checkpoint_dir, own.export_dir) == (Path("own"), None)
    first, last = parts_of(request(export_dir=Path("other")), changes=True, begin=0, last=20)
    assert (first.trainer.export_dir, last.trainer.export_dir) == (None, Path("other"))


def test_what_cannot_be_asked_for_is_refused() -> None:
    live, staged = settings(), settings(stages=[{"stage": "sft", "loss": "sft", "total_steps": 1}, {"stage": "rl"}])
    for own, name, folder, why in (
        (live, "trainer-0", "own", "trainer-0 is the live trainer's name"),
        (live, "replay-1", "own/../live", r"own/\.\./live is the live trainer's"),
        (staged, "replay-1", "own", "a replay is of one stage"),
    ):
        with pytest.raises(ConfigError, match=why):
            ReplayRequest(own, own, name, Path(folder), 1).check()
    # Demonstrations can be left out.
    ReplayRequest(settings(strategy="mix"), live, "replay-1", Path("own"), 1).check()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"limited_sampling": "train"}, "trainer.limited_sampling: leave_out -> train: a replay trains on what the "),
        ({"effective_groups": 2}, "trainer.effective_groups: None -> 2: "),
        ({"effective_batches": 2}, "trainer.effective_batches: 4 -> 2: "),
        ({"replay_groups": 2}, "trainer.replay_groups: 16 -> 2: "),
        ({"replay_steps": 2}, "trainer.replay_steps: 8 -> 2: "),
        ({"replay_decay": 2}, "trainer.replay_decay: 1.0 -> 2.0: "),
        ({"examples": 2}, "trainer.examples: None -> 2: "),
        ({"examples_per_step": 2}, "trainer.examples_per_step: 32 -> 2: "),
        ({"strategy": "priority"}, "trainer.strategy: default -> priority: "),
        ({"total_steps": 9}, "trainer.total_steps: say it with --to-step"),
        ({"name": "slower"}, "trainer.name: say it with --name"),
        ({"checkpoint_dir": Path("other")}, "trainer.checkpoint_dir: say it with --dir"),
    ],
)
def test_a_setting_of_which_nothing_would_come_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(WrongSettingsError) as refused:
        request(**changes, loss="gspo").check()
    (said,) = refused.value.problems
    assert said.startswith(line)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "trainer-0"}, "give the shadow a name of its own"),
        ({"name": "s", "stages": [{"stage": "one"}]}, "a shadow follows one training: leave"),
    ],
)
def test_a_shadow_of_itself_or_with_stages_is_refused(changes: dict[str, Any], why: str) -> None:
    assert any(why in line for line in problems("trainer", settings(role="shadow", **changes)))


def test_a_folder_of_a_trainer_that_follows_nobody_is_not_taken(tmp_path: Path) -> None:
    follows = checkpoint.Follows(trainer="trainer-0", run="0" * 32)
    assert checkpoint.read_follows(tmp_path) is None
    (tmp_path / "step-00000003").mkdir()
    with pytest.raises(CheckpointError, match="of a trainer that follows nobody"):
        checkpoint.note_follows(tmp_path, follows)
    (tmp_path / "step-00000003").rmdir()
    checkpoint.note_follows(tmp_path, follows)
    assert checkpoint.read_follows(tmp_path) == follows
    with pytest.raises(CheckpointError, match="is of no trainer"):
        checkpoint.read_run(tmp_path)


def test_progress_takes_from_a_step_what_the_engine_does_not_know() -> None:
    made = TrainingProgress(step=3, version=3, trained_tokens=7)
    after = made.after(begun(examples=5))
    assert (after.step, after.batches_offset, after.sequence, after.examples) == (3, 9, 3, 5)
    assert after.skipped == ()
    (skipped,) = made.after(begun(skipped="an operator said so")).skipped
    assert (skipped.batch_id, skipped.step, skipped.reason) == ("batch-3", 3, "an operator said so")


class FakeRun:
    """A bus with one step, of one group."""

    def __init__(self, group: ExperienceGroup) -> None:
        self.group = group

    async def fetch(self, topic: Topic, _positions: Sequence[Position]) -> list[Received[Any]]:
        return [received(begun() if topic is STEPS else self.group)]


async def test_a_teacher_that_a_run_did_not_have_is_missed_before_anything_is_loaded() -> None:
    group, first = make_group(), Recorded(run="run-1", offset=7)
    alone = cast("Any", FakeRun(group))
    distilled = TrainerSettings(advantage="distillation")
    with pytest.raises(
        TrainingError, match=r"'distillation' needs what a teacher says .* no sample of step 3 of trainer-0"
    ):
        await ensure_taught(alone, first, distilled)
    await ensure_taught(alone, first, TrainerSettings())
    taught = replace(group, teacher_logprobs=np.full_like(group.logprobs, -1))
    await ensure_taught(cast("Any", FakeRun(taught)), first, distilled)
