"""What a group teaches: the trainer's own numbers, or why they are not known."""

import msgspec
import numpy as np
import pytest

from schemas import ExperienceGroup
from schemas.experience import join_groups
from tests.support.fakes.experiences import make_group
from trinity_bus.config import TrainerSettings, told_settings
from trinity_bus.config.given import read_given
from trinity_bus.console.index.answers import GroupRow, SettingsRow, StepName
from trinity_bus.console.web.advantage import advantages_of, run_rewards
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages.advantage import Advantage
from trinity_bus.training.samples import prepare
from workers.console.rollout_pages import parts_of, share_runs


def told(name: str = "trainer-0", /, **settings: object) -> SettingsRow:
    given, wrong = read_given({f"trainer.{path}": value for path, value in settings.items()})
    assert given is not None, wrong
    return SettingsRow("trainer", name, 0.0, told_settings(given, "mesh", "trainer"))


def runs(*ids: int, rewards: tuple[float, ...], attempt: int = 1) -> ExperienceGroup:
    group = make_group(rewards=rewards, attempt=attempt)
    return msgspec.structs.replace(group, run_ids=np.array(ids, np.int32))


GROUP = runs(0, 0, 1, 2, rewards=(1.0, 0.0, 1.0, 0.0))
"""A run of two samples, and two of one."""


@pytest.mark.parametrize(
    "settings",
    [
        {"advantage": "grpo"},
        {"advantage": "grpo", "advantage_std": "none"},
        {"advantage": "rloo"},
        {"advantage": "opmd"},
        {"advantage": "opmd", "opmd_baseline": "logavgexp", "opmd_tau": 0.5},
        {"advantage": "stepwise"},
    ],
)
def test_they_are_the_trainers_own(settings: dict[str, object]) -> None:
    own = TrainerSettings.model_validate(settings)
    batch = prepare([GROUP], version=0, advantage=registry.make("advantage", Advantage, own))
    found = advantages_of(GROUP, [told(**settings)], "trainer-0")
    assert (found.of, found.unknown) == (settings["advantage"], "")
    assert list(found.values) == [pytest.approx(float(one.advantages[one.mask].mean())) for one in batch.samples]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"advantage": "grpo", "advantage_std": "batch"}, "whole batch"),
        ({"advantage": "stepwise", "advantage_std": "batch"}, "whole batch"),
        ({"advantage": "gae"}, "all tokens of the step"),
        ({"advantage": "reinforce_plus_plus_baseline"}, "all tokens of the step"),
        ({"advantage": "mine"}, "another package"),
        ({"advantage": "remax"}, "greedy"),
        ({"advantage": "distillation"}, "teacher"),
    ],
)
def test_what_a_group_alone_does_not_decide_is_not_known(settings: dict[str, object], why: str) -> None:
    found = advantages_of(GROUP, [told(**settings)], "trainer-0")
    assert why in found.unknown
    assert (found.values, found.teaches_nothing) == ((), False)


def test_the_settings_are_those_of_the_trainer_that_trained_on_it() -> None:
    both = [told(advantage="rloo"), told("other", advantage="opmd")]
    assert advantages_of(GROUP, both, "other").of == "opmd"
    assert "2 trainers differ" in advantages_of(GROUP, both, None).unknown
    assert advantages_of(GROUP, [told(), told("other", learning_rate=1.0)], None).of == "grpo"
    assert "has not told" in advantages_of(GROUP, both, "third").unknown
    assert "no trainer" in advantages_of(GROUP, [], None).unknown
    broken = SettingsRow("trainer", "t", 0.0, {"trainer.advantage": '"cut o'})
    assert "cannot be read" in advantages_of(GROUP, [broken], "t").unknown


def test_runs_that_are_equal_teach_nothing_though_their_samples_differ() -> None:
    equal = runs(0, 0, 1, rewards=(1.0, 0.0, 0.5))
    assert advantages_of(equal, [told()], None).teaches_nothing
    assert run_rewards(equal) == [0.5, 0.5]
    assert run_rewards(runs(4, rewards=(float("nan"),))) == []


def test_a_part_of_a_group_that_teaches_nothing_does_beside_the_others() -> None:
    one, other = runs(0, 1, rewards=(1.0, 1.0)), runs(2, 3, rewards=(0.0, 0.0), attempt=2)
    assert advantages_of(one, [told()], None).teaches_nothing
    whole = advantages_of(join_groups([one, other]), [told(advantage="rloo")], None)
    assert list(whole.values) == [pytest.approx(2 / 3)] * 2 + [pytest.approx(-2 / 3)] * 2


def row(offset: int, *steps: int, batch_id: str = "b") -> GroupRow:
    trained = [StepName(step, "trainer-0", None) for step in steps]
    who = ("train", "math", "policy", "explorer-0")
    return GroupRow(0, offset, 0.0, "t", 1, batch_id, *who, 1, 0.0, 0.0, 0.0, 0.0, 0, 0, 3, 3, None, None, trained)  # type: ignore[arg-type]


def test_the_parts_of_a_group_are_those_that_its_step_trained_on() -> None:
    groups = [row(0), row(1, 5), row(2, 5), row(3, batch_id="another")]
    assert [one.offset for one in parts_of(groups[1], groups)] == [1, 2]
    assert [one.offset for one in parts_of(groups[0], [groups[0], row(4), groups[3]])] == [0, 4]
    assert parts_of(groups[0], []) == [groups[0]]


def test_attempts_that_had_the_same_runs_do_not_all_count() -> None:
    first, second = runs(0, 1, rewards=(1.0, 0.0)), runs(1, 2, rewards=(1.0, 0.0), attempt=2)
    assert share_runs([first, second])
    # A group too large for one record is of one attempt, and a run of many samples may lie in two of them.
    assert not share_runs([first, runs(1, 2, rewards=(1.0, 0.0))])
    assert not share_runs([first, runs(2, 3, rewards=(1.0, 0.0), attempt=2)])
