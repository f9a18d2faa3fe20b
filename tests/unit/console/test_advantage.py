from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas import Position, TaskResult, TrainerHeartbeat
from schemas.batch import ResultPart
from schemas.experience import ExperienceGroup
from schemas.groups.pieces import join_groups
from schemas.step import LeftOut, StepBegun, StepGroup
from tests.support.fakes.experiences import make_group
from tests.support.fakes.log_records import LogRecords, group
from tests.support.narrowing import some
from trinity_bus.config import Settings, TrainerSettings, told_settings
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.terms import GroupUse, SampleFilter, SettingsRow, StepName, WholeGroup
from trinity_bus.console.web.advantage import compare, settings_of
from trinity_bus.console.web.rollouts import sample_places
from trinity_bus.errors import ConfigError
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages import Advantage
from trinity_bus.training.steps.choice import without
from trinity_bus.training.steps.samples import prepare

LIVE = StepName(4, "trainer-0", None)
TRAINER = {"trainer": "trainer-0", "incarnation": "t", "model": "policy"}


def told(name: str = "trainer-0", **settings: Any) -> SettingsRow:
    made = Settings(trainer=TrainerSettings(**settings))
    return SettingsRow("trainer", name, 0.0, told_settings(made, "mesh", "trainer"))


def whole(*left_out: LeftOut, step: StepName | None = LIVE) -> WholeGroup:
    return WholeGroup(parts=[], missing=0, uses=[] if step is None else [GroupUse(step, 1.0, list(left_out))])


def episodes() -> ExperienceGroup:
    """Three runs: two samples, one sample, three samples of which one has no reward."""
    made = make_group(rewards=(0.0, 1.0, 0.25, 1.0, float("nan"), 0.5))
    return replace(made, run_ids=np.array([0, 0, 1, 2, 2, 2], np.int32))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"advantage_std": "none"},
        {"overlong_buffer": 200, "overlong_penalty": 0.5},
        {"advantage": "rloo"},
        {"advantage": "opmd"},
        {"advantage": "opmd", "opmd_baseline": "logavgexp", "opmd_tau": 0.5},
        {"advantage": "stepwise"},
    ],
)
def test_advantages_are_the_trainers_own(settings: dict[str, Any]) -> None:
    log, row = episodes(), LeftOut(task_id="task", reason="not_finite", samples=[1])
    own = registry.make("advantage", Advantage, TrainerSettings(**settings))
    (kept,) = without([log], [row])
    trained = prepare([kept, make_group(seed=1, task_id="other")], version=0, advantage=own)
    expected = {s.number: float(s.advantages[s.mask].mean()) for s in trained.samples if (s.number or 0) < len(kept)}
    found = compare(whole(row), log, [told(**settings)])
    numbers = [number for number in range(len(log)) if number != 1]
    assert found.name == own.settings.advantage
    assert not found.unknown
    assert found.of(1) is None
    assert {at: found.of(number) for at, number in enumerate(numbers) if found.of(number) is not None} == expected
    assert len(expected) >= 4


def test_a_run_of_several_samples_counts_once() -> None:
    # By samples the mean would be 0.5, and all of the third run above it.
    log = replace(make_group(rewards=(0.0, 0.0, 1.0, 1.0)), run_ids=np.array([0, 1, 2, 2], np.int32))
    found = compare(whole(), log, [told(advantage_std="none")])
    assert found.advantages == pytest.approx([-1 / 3, -1 / 3, 2 / 3, 2 / 3])
    equal = replace(make_group(rewards=(0.0, 1.0, 0.5)), run_ids=np.array([0, 0, 1], np.int32))
    assert compare(whole(), equal, [told()]).teaches_nothing


@pytest.mark.parametrize(
    ("step", "rows", "why"),
    [
        (LIVE, [], "trainer-0 has told no settings"),
        (StepName(4, "replay-4", "trainer-0"), [told()], "replay-4 has told no settings"),
        (None, [told(), told("trainer-1")], "2 trainers told"),
        (None, [], "no trainer told"),
        (LIVE, [told(advantage="gae")], "gae compares all tokens of a step"),
        (LIVE, [told(advantage="reinforce_plus_plus")], "compares all tokens of a step"),
        (LIVE, [told(advantage_std="batch")], "deviation of the whole batch"),
        (LIVE, [told(advantage="remax")], "greedy"),
        (LIVE, [told(advantage="distillation")], "teacher"),
        (LIVE, [SettingsRow("trainer", "trainer-0", 0, {"trainer.advantage": '"os"'})], "of a package"),
        (LIVE, [SettingsRow("trainer", "trainer-0", 0, {"trainer.advantage": '"gr'})], "no value"),
        (LIVE, [SettingsRow("trainer", "trainer-0", 0, {"trainer.advantage_std": '"mine"'})], "cannot be"),
        (LIVE, [told(stages=[{"stage": "rl", "advantage": "rloo"}])], "in stages"),
    ],
)
def test_what_is_not_known_says_why(step: StepName | None, rows: list[SettingsRow], why: str) -> None:
    found = compare(whole(step=step), episodes(), rows)
    assert why in found.unknown
    assert found.of(0) is None
    assert compare(WholeGroup(parts=[], missing=1, uses=[]), episodes(), rows).unknown.startswith("1 of its parts")


def test_a_stage_has_settings_of_its_own() -> None:
    row = told(opmd_tau=2.0, stages=[{"stage": "rl", "advantage": "rloo", "total_steps": 3}])
    found = settings_of(StepName(4, "trainer-0/rl", None), [told("other"), row])
    assert (found.advantage, found.opmd_tau) == ("rloo", 2.0)
    assert settings_of(None, [told(advantage="opmd")]).advantage == "opmd"
    with pytest.raises(ConfigError, match="stages"):
        settings_of(StepName(4, "trainer-0/sft", None), [row])


@pytest.fixture
def log() -> LogRecords:
    """A task of two attempts, each with equal rewards, which differ from the other's; and one without a result yet."""
    log = LogRecords()
    beat = {"state": "training", "step": 0, "version": 0, "master_address": "h", "master_port": 1}
    log.add(TrainerHeartbeat(**TRAINER, **beat, settings=told().settings), 99)
    log.add(group("t", [1.0, 1.0]), 100, partition=1)
    log.add(group("t", [0.0], attempt=2, run_id_base=2), 101)
    log.add(group("u", [0.5, 0.5]), 102)
    places = [Position(partition=1, offset=0), Position(partition=0, offset=0)]
    parts = [ResultPart(attempt=1, samples=2, position=places[0]), ResultPart(attempt=2, samples=1, position=places[1])]
    done = {"status": "completed", "completed_runs": 3, "total_runs": 3, "attempts": 2}
    log.add(TaskResult(task_id="t", batch_id="train-1", batch_type="train", parts=parts, **done), 103)
    left = [LeftOut(task_id="t", reason="not_finite", samples=[2], detail="why")]
    groups = [StepGroup(task_id="t", parts=parts)]
    step = {"run": "r", "step": 4, "batch_id": "train-1", "sequence": 1, "next_offset": 1}
    log.add(StepBegun(**TRAINER, **step, groups=groups, left_out=left), 104)
    return log


def test_a_split_group_is_one_from_each_of_its_parts(index: Index) -> None:
    for partition, offset, first in ((1, 0, 0), (0, 0, 2)):
        found = some(index.whole_group(partition, offset))
        assert ([part.attempt for part in found.parts], found.missing) == ([1, 2], 0)
        assert found.first_of(partition, offset) == first
        assert [str(place) for place in sample_places(found.parts)] == ["1-0-0", "1-0-1", "0-0-0"]
        (use,) = found.uses
        assert (use.step, use.begun_at, [one.samples for one in use.left_out]) == (LIVE, 104, [[2]])
        joined = join_groups([group("t", [1.0, 1.0]), group("t", [0.0], attempt=2, run_id_base=2)])
        # What the step left out was the only run that was worse.
        assert compare(found, joined, index.settings(service="trainer")).teaches_nothing
    assert index.settings(service="explorer") == []
    earlier = some(index.whole_group(1, 0, until=100.5))
    assert (len(earlier.parts), earlier.missing, earlier.uses) == (1, 1, [])
    assert index.whole_group(0, 0, until=100.5) is None
    assert index.whole_group(5, 5) is None
    alone = some(index.whole_group(0, 1))
    assert ([part.task_id for part in alone.parts], alone.missing) == (["u"], 0)


def test_a_task_teaches_nothing_only_where_all_its_parts_are_equal(index: Index) -> None:
    assert {(row.task_id, row.attempt): row.teaches_nothing for row in index.groups().rows} == {
        ("t", 1): False,
        ("t", 2): False,
        ("u", 1): True,
    }
    assert [row.task_id for row in index.groups(SampleFilter(teaches_nothing=True)).rows] == ["u"]
    # Before the second attempt had answered nobody could know.
    assert [row.teaches_nothing for row in index.groups(until=100.5).rows] == [True]
