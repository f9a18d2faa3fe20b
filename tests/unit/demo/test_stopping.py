from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas import Task
from workers.demo.display import Clock, Display
from workers.demo.lesson import AHEAD, Lesson, stays_up
from workers.demo.subjects import COPY, DemoOptions

UP = [0.98, 0.99, 1.0, 0.98]


@pytest.mark.parametrize(
    ("rewards", "due"),
    [
        ([0.1], False),
        (UP[:3], False),
        (UP, True),
        ([0.1, *UP], True),
        ([1.0, 1.0, 1.0, 0.97], False),
        ([1.0, 1.0, 1.0, 1.0, 0.9, 1.0, 1.0, 1.0], False),
    ],
)
def test_a_check_is_due_once_the_reward_stays_up(rewards: list[float], due: bool) -> None:
    assert stays_up(rewards, 0.98) is due
    assert not stays_up(rewards, None)


class Run(Lesson):
    """A lesson in a mesh of which each step has this reward."""

    def __init__(self, reward: float, exact: list[float], **options: Any) -> None:
        own = DemoOptions(run_dir=Path("run"), subject=COPY, **options)
        none = cast("Any", None)
        super().__init__(own, cast("Display", none), cast("Clock", none), producer=none, follower=none)
        self.reward, self.exact = reward, exact
        self.produced = self.steps = 0
        self.versions_checked: list[int] = []

    @property
    def _view(self) -> Any:
        steps = [SimpleNamespace(step=number, version=number) for number in range(1, self.steps + 1)]
        return SimpleNamespace(trained=steps, reward=lambda _: self.reward)

    async def _send_batch(self, stream: Iterator[Task]) -> None:
        assert self.produced < self.steps + AHEAD
        self.produced += 1

    async def _next(self) -> None:
        assert self.steps < self.produced
        self.steps += 1

    async def _until(self, condition: Callable[[], bool]) -> None:
        """All explorers serve at once."""

    async def _check(self, steps: int) -> float:
        assert self.steps == self.produced, "what was produced ahead is trained before a check"
        self.versions_checked.append(steps)
        return self.exact.pop(0)


async def test_it_ends_with_the_version_that_has_passed_or_after_all_steps() -> None:
    run = Run(0.99, [0.9, 0.995, 1.0])
    assert (await run._train()).step == run.versions_checked[-1] == run.produced
    assert run.versions_checked == [5, 10, 15]
    # Without one digit at one place a tenth of the prompts lose one word of four.
    for reward in (0.975, 0.98):
        assert (await Run(reward, [0.9] * 30, steps=30)._train()).step == 30
    assert (await Run(1.0, [], steps=30, early_stop=False)._train()).step == 30
