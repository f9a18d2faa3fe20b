"""Which batches are trained on together until enough of their groups teach something."""

from schemas import LeftOut, StepBegun
from tests.support.fakes.experiences import make_group
from tests.support.fakes.steps import begun_step
from trinity_bus.config import TrainerSettings
from trinity_bus.training.steps import choice
from trinity_bus.training.steps.choice import has_to_wait, left_waiting, waiting


def begun(step: int, *, waits: bool = False, skipped: str | None = None) -> StepBegun:
    left_out = [LeftOut(task_id="a", reason="waiting", samples=[0])] if waits else []
    return begun_step(step, left_out=left_out, skipped=skipped)


def must(*taught: bool, step: int = 5, groups: int = 2, before: int = 0, **settings: int) -> bool:
    """Whether a step waits, behind so many that do."""
    known = [begun(step - i, waits=True) for i in range(before, 0, -1)]
    given = TrainerSettings(strategy="dynamic_sampling", **settings)
    return has_to_wait(taught, given, step=step, groups=groups, before=known)


def numbers(*records: StepBegun, step: int) -> list[int]:
    return [record.step for record in waiting(records, step=step)]


def test_a_step_waits_until_enough_groups_teach_something() -> None:
    assert must(True, False)
    assert not must(True, True)
    assert not must(True, False, False, True, before=1)
    assert must(True, True, effective_groups=3)
    assert not must(True, False, effective_groups=1)
    assert not must(groups=0), "of nothing there is nothing to wait for"


def test_there_is_an_end_to_waiting() -> None:
    assert must(False, before=2, effective_batches=4)
    assert not must(False, before=3, effective_batches=4)
    assert not must(False, effective_batches=1)
    assert not must(False, step=5, total_steps=5)


def test_those_right_before_it_wait_and_none_of_before_a_step_that_was_trained() -> None:
    known = [begun(1, waits=True), begun(2), begun(3, waits=True), begun(4, skipped="poison"), begun(5, waits=True)]
    assert numbers(*known, step=6) == [3, 4, 5]
    assert numbers(*known, step=3) == []
    assert numbers(*known, step=2) == [1]
    # Of a step that is not known nobody can say whether it waited; what is to come plays no part.
    assert numbers(begun(1, waits=True), begun(3, waits=True), begun(4), step=4) == [3]
    assert numbers(step=1) == []


def test_what_waits_is_left_out_whole() -> None:
    groups = [make_group(seed=1, task_id="a"), make_group(seed=2, task_id="b")]
    left = left_waiting(groups)
    assert [(one.task_id, one.samples) for one in left] == [(g.task_id, list(range(len(g)))) for g in groups]
    assert choice.without(groups, left) == []
    assert waiting([begun(1).model_copy(update={"left_out": left})], step=2)
