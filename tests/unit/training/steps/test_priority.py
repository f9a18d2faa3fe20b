"""Which groups are learned from once more."""

from schemas import Position, ResultPart, StepBegun, StepGroup
from tests.support.fakes.steps import begun_step
from trinity_bus.config import TrainerSettings
from trinity_bus.training.steps.choice import ranked


def group(task: str) -> StepGroup:
    return StepGroup(
        task_id=task, parts=[ResultPart(attempt=1, samples=2, position=Position(partition=0, offset=int(task[1:])))]
    )


def begun(step: int, *tasks: str, replayed: str = "") -> StepBegun:
    return begun_step(step, groups=[group(task) for task in tasks], replayed=[group(task) for task in replayed.split()])


def order(*earlier: StepBegun, step: int, **settings: float) -> list[str]:
    settings = {"replay_steps": 3, **settings}
    return [found.task_id for found in ranked(earlier, TrainerSettings(**settings), step=step)]


def test_the_newest_come_first_and_each_use_costs_what_the_settings_say() -> None:
    known = [begun(1, "a0"), begun(2, "b1"), begun(3, "c2"), begun(4, "d3", replayed="b1 c2"), begun(5, replayed="c2")]
    assert order(*known[:3], step=4) == ["c2", "b1", "a0"]
    # Step 1 is too long ago. b: 2 - 1, c: 3 - 2 * 1, d: 4.
    assert order(*known, step=5, replay_decay=0) == ["d3", "c2", "b1"]
    assert order(*known, step=5, replay_decay=1.5) == ["d3", "c2", "b1"]
    assert order(*known, step=6, replay_decay=1.5) == ["d3", "c2"]
    assert order(*known, begun(6, "e4", "f5", replayed="d3"), step=7, replay_decay=3)[2:] == ["d3"]
    # What is to come, of a step that is taken again, plays no part.
    assert order(*known, step=2) == ["a0"]
    assert order(step=1) == []


def test_equal_ones_are_drawn_by_seed_and_step() -> None:
    many = begun(1, *(f"t{i}" for i in range(20)))
    first = order(many, step=2, seed=0)
    assert first == order(many, step=2, seed=0)
    assert sorted(first) == sorted(task.task_id for task in many.groups)
    assert len({tuple(order(many, step=step, seed=seed)) for step in (2, 3) for seed in (0, 1)}) == 4
