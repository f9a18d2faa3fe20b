"""Which batches wait for each other until enough of their groups teach something, and which groups are learned from
once more.
"""

from schemas import LeftOut, StepBegun, StepGroup
from tests.support.fakes.experiences import make_group
from tests.support.fakes.mesh_records import part
from tests.support.fakes.steps import begun_step
from trinity_bus.config import TrainerSettings
from trinity_bus.training.steps import choice
from trinity_bus.training.steps.choice import has_to_wait, left_waiting, ranked, waiting


def waits(step: int) -> StepBegun:
    return begun_step(step, left_out=[LeftOut(task_id="a", reason="waiting", samples=[0])])


def must(*taught: bool, step: int = 5, groups: int = 2, before: int = 0, **settings: int) -> bool:
    """Whether a step waits, behind so many that do."""
    given = TrainerSettings(strategy="dynamic_sampling", **settings)
    return has_to_wait(taught, given, step=step, groups=groups, before=[waits(step - i) for i in range(before, 0, -1)])


def numbers(*records: StepBegun, step: int) -> list[int]:
    return [record.step for record in waiting(records, step=step)]


def test_a_step_waits_until_enough_groups_teach_something_and_there_is_an_end_to_waiting() -> None:
    assert must(True, False)
    assert not must(True, True)
    assert not must(True, False, False, True, before=1)
    assert must(True, True, effective_groups=3)
    assert not must(True, False, effective_groups=1)
    assert not must(groups=0), "of nothing there is nothing to wait for"
    assert must(False, before=2, effective_batches=4)
    assert not must(False, before=3, effective_batches=4)
    assert not must(False, effective_batches=1)
    assert not must(False, step=5, total_steps=5)


def test_those_right_before_it_wait_and_none_of_before_a_step_that_was_trained() -> None:
    known = [waits(1), begun_step(2), waits(3), begun_step(4, skipped="poison"), waits(5)]
    assert numbers(*known, step=6) == [3, 4, 5]
    assert numbers(*known, step=3) == []
    assert numbers(*known, step=2) == [1]
    # Of a step that is not known nobody can say whether it waited; what is to come plays no part.
    assert numbers(waits(1), waits(3), begun_step(4), step=4) == [3]
    assert numbers(step=1) == []


def test_what_waits_is_left_out_whole() -> None:
    groups = [make_group(seed=1, task_id="a"), make_group(seed=2, task_id="b")]
    left = left_waiting(groups)
    assert [(one.task_id, one.samples) for one in left] == [(g.task_id, list(range(len(g)))) for g in groups]
    assert choice.without(groups, left) == []
    assert waiting([begun_step(1, left_out=left)], step=2)


def learned(step: int, *tasks: str, replayed: str = "") -> StepBegun:
    first, again = (
        [StepGroup(task_id=task, parts=[part(int(task[1:]))]) for task in named] for named in (tasks, replayed.split())
    )
    return begun_step(step, groups=first, replayed=again)


def order(*earlier: StepBegun, step: int, **settings: float) -> list[str]:
    settings = {"replay_steps": 3, **settings}
    return [found.task_id for found in ranked(earlier, TrainerSettings(**settings), step=step)]


def test_the_newest_come_first_and_each_use_costs_what_the_settings_say() -> None:
    known = [learned(1, "a0"), learned(2, "b1"), learned(3, "c2")]
    assert order(*known, step=4) == ["c2", "b1", "a0"]
    known += [learned(4, "d3", replayed="b1 c2"), learned(5, replayed="c2")]
    # Step 1 is too long ago. b: 2 - 1, c: 3 - 2 * 1, d: 4.
    assert order(*known, step=5, replay_decay=0) == ["d3", "c2", "b1"]
    assert order(*known, step=5, replay_decay=1.5) == ["d3", "c2", "b1"]
    assert order(*known, step=6, replay_decay=1.5) == ["d3", "c2"]
    assert order(*known, learned(6, "e4", "f5", replayed="d3"), step=7, replay_decay=3)[2:] == ["d3"]
    # What is to come, of a step that is taken again, plays no part.
    assert order(*known, step=2) == ["a0"]
    assert order(step=1) == []


def test_equal_ones_are_drawn_by_seed_and_step() -> None:
    many = learned(1, *(f"t{i}" for i in range(20)))
    first = order(many, step=2, seed=0)
    assert first == order(many, step=2, seed=0)
    assert sorted(first) == sorted(task.task_id for task in many.groups)
    assert len({tuple(order(many, step=step, seed=seed)) for step in (2, 3) for seed in (0, 1)}) == 4
