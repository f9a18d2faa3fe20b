"""Environments with Gymnasium's interface: what the model sees, what its turns earn, and what becomes of bad ones."""

import threading
from typing import Any, ClassVar

import numpy as np
import pytest

from schemas import Task
from tests.support.fakes.turns import TurnLog
from tests.support.mesh.waiting import until
from trinity_bus.rollout.text_env import EnvironmentTimeoutError, TextEnv, TextEnvWorkflow
from trinity_bus.rollout.threads import given_up
from trinity_bus.testing import OutOfAnswersError, ScriptedEngine, run_workflow


class Guess:
    """A FAKE game: guess the seed."""

    def __init__(self, hang: threading.Event | None = None) -> None:
        self.closed = False
        self._hang = hang

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        self._seed, self._left = seed, (options or {}).get("guesses", 3)
        return "guess", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "hang":
            assert self._hang is not None
            self._hang.wait()
        if action == "break":
            raise KeyError("broken")
        self._left -= 1
        right = int(action) == self._seed
        return ("right" if right else "wrong"), (1.0 if right else -0.25), right, self._left == 0, {}

    async def close(self) -> None:
        self.closed = True


class Guessing(TextEnvWorkflow):
    name = "guessing"
    step_timeout_s: ClassVar = 0.2
    hang: threading.Event | None = None

    def make(self, task: Task) -> TextEnv:
        self.env = Guess(self.hang)
        return self.env


async def play(workflow: Guessing, *said: str, **data: Any) -> Any:
    engine = ScriptedEngine(said)
    task = Task(workflow="guessing", prompt="Play.", data={"seed": 7, **data})
    (rollout,) = await run_workflow(workflow, task, engine)
    return rollout, engine


async def test_each_step_is_a_turn_with_its_reward_and_the_run_is_worth_their_sum() -> None:
    workflow = Guessing()
    rollout, engine = await play(workflow, "3", "7")
    assert engine.requests[0].prompt == "system: Play.\nuser: guess\nassistant: "
    assert engine.requests[1].prompt.endswith("user: wrong\nassistant: ")
    assert rollout.reward == 0.75
    np.testing.assert_array_equal(rollout.turn_rewards, [-0.25, 1.0])
    assert (rollout.metrics["turns"], rollout.metrics["truncated"]) == (2.0, 0.0)
    assert workflow.env.closed
    # It may cut the game off.
    rollout, _ = await play(Guessing(), "1", "2", options={"guesses": 2})
    assert (rollout.reward, rollout.metrics["truncated"]) == (-0.5, 1.0)


async def test_one_that_raises_fails_its_run_and_is_closed() -> None:
    workflow = Guessing()
    with pytest.raises(KeyError, match="broken"):
        await play(workflow, "break")
    assert workflow.env.closed


class Dice(Guess):
    """A FAKE game that does not follow from its seed."""

    def __init__(self, shown: list[str]) -> None:
        super().__init__()
        self._shown = iter(shown)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        seen = next(self._shown)
        return seen, float(action), seen == "over", False, {}


async def test_an_environment_that_shows_something_else_the_second_time_has_the_model_asked_anew_from_there() -> None:
    log, dice = TurnLog(), Guessing()
    task = Task(task_id="t", workflow="guessing", prompt="Play.")

    async def attempt(said: list[str], shown: list[str]) -> tuple[Any, int]:
        engine = ScriptedEngine(said)
        dice.make = lambda _: Dice(shown)  # type: ignore[assignment, method-assign]
        try:
            return await dice.run(task, log.context(engine)), len(engine.requests)
        except OutOfAnswersError as error:
            return error, len(engine.requests)

    await attempt(["1", "2"], ["one", "two"])
    ((rollout,), asked) = await attempt(["5"], ["one", "over"])
    assert (rollout.reward, asked) == (3.0, 0), "as far as it shows the same, what was drawn is drawn no more"
    ((rollout,), asked) = await attempt(["5"], ["another", "over"])
    assert (rollout.reward, asked) == (6.0, 1)


async def test_one_that_hangs_fails_its_run_and_is_told_of_as_long_as_it_does() -> None:
    workflow = Guessing()
    workflow.hang = threading.Event()
    with pytest.raises(EnvironmentTimeoutError, match=r"Guess.step gave nothing within 0\.2 s"):
        await play(workflow, "hang")
    assert given_up() == 1
    workflow.hang.set()
    await until(lambda: given_up() == 0)
