"""OpenEnv's environments: a real one, where the package is installed, and what becomes of servers that misbehave."""

import importlib.util
import json
from typing import Any, ClassVar

import numpy as np
import pytest
from aiohttp import WSMsgType, web

from schemas import Task
from tests.support.fakes.http import served_by
from trinity_bus.rollout.openenv import MAX_OBSERVATION_BYTES, OpenEnv, OpenEnvError, OpenEnvWorkflow
from trinity_bus.rollout.text_env import EnvironmentTimeoutError
from trinity_bus.runtime.http import listening
from trinity_bus.runtime.ports import free_port
from trinity_bus.testing import ScriptedEngine, run_workflow


class Guessing(OpenEnvWorkflow):
    name = "guessing"
    max_turns: ClassVar = 4
    step_timeout_s: ClassVar = 10.0

    def __init__(self, url: str) -> None:
        self.url = url  # type: ignore[misc]


class Told(Guessing):
    def seen(self, observation: Any) -> str:
        return str(observation["told"])


async def play(workflow: Guessing, *said: str, **data: Any) -> Any:
    engine = ScriptedEngine(said)
    task = Task(workflow="guessing", prompt="Play.", data={"seed": 7, **data})
    (rollout,) = await run_workflow(workflow, task, engine)
    return rollout, engine


@pytest.mark.skipif(importlib.util.find_spec("openenv") is None, reason="not run: openenv is not installed")
async def test_an_environment_of_the_real_package_is_played_and_its_rewards_are_summed() -> None:
    async with served_by("openenv_server.py") as (url, _):
        rollout, engine = await play(Told(url), "log", "bus", options={"word": "bus"})
        assert engine.requests[0].prompt == "system: Play.\nuser: guess 3 letters, seed 7\nassistant: "
        assert engine.requests[1].prompt.endswith("user: wrong\nassistant: ")
        assert (rollout.reward, rollout.metrics["turns"]) == (0.75, 2.0)
        np.testing.assert_array_equal(rollout.turn_rewards, [-0.25, 1.0])
        # By default the model sees all fields of the environment's own; and each run before has given its session back.
        rollout, engine = await play(Guessing(url), "a", "b", "c")
        assert '{"told":"guess 5 letters, seed 7"}' in engine.requests[0].prompt
        assert rollout.reward == -0.75
        with pytest.raises(OpenEnvError, match=rf"the environment at {url}: .*it is broken"):
            await play(Told(url), "break")
        others = [OpenEnv(url), OpenEnv(url)]
        for other in others:
            await other.reset()
        with pytest.raises(OpenEnvError, match="CAPACITY_REACHED"):
            await play(Told(url), "kafka")
        for other in others:
            await other.close()


def observed(told: str = "go", reward: float | None = None, *, done: bool = False) -> str:
    observation = {"told": told, "metadata": {"answer": "kafka"}}
    return json.dumps({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}})


@pytest.mark.parametrize(
    ("answers", "error", "why"),
    [
        ([observed(done=True)], OpenEnvError, "is over before it began"),
        ([observed(), observed(done=True)], OpenEnvError, "has ended, and no step of it had a reward"),
        ([observed(), "{"], OpenEnvError, "DecodeError"),
        ([observed(), '{"type": "observation", "data": {"reward": 1}}'], OpenEnvError, "missing required field"),
        ([observed(), observed(reward="much")], OpenEnvError, "Expected `.*`, got `str`"),  # type: ignore[arg-type]
        ([observed("x" * MAX_OBSERVATION_BYTES)], OpenEnvError, "it has closed the connection: Message size"),
        ([observed()], OpenEnvError, "it has closed the connection"),
        ([observed(), "hang"], EnvironmentTimeoutError, r"OpenEnv.step gave nothing within 0\.5 s"),
    ],
)
async def test_a_server_that_misbehaves_fails_the_run_with_the_reason(
    answers: list[str], error: type[Exception], why: str
) -> None:
    left: list[bool] = []

    async def misbehave(request: web.Request) -> web.WebSocketResponse:
        # A FAKE server: it answers in turn, and then closes the connection.
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for answer in answers:
            assert (await socket.receive()).type is WSMsgType.TEXT
            if answer != "hang":
                await socket.send_str(answer)
                continue
            try:
                await socket.receive()
            finally:
                left.append(True)
        return socket

    app = web.Application()
    app.router.add_get("/ws", misbehave)
    async with listening(app, "127.0.0.1", 0, setting="a test", shutdown_s=0.1) as address:
        workflow = Told(f"http://{address}/")
        workflow.step_timeout_s = 0.5  # type: ignore[misc]
        with pytest.raises(error, match=why):
            await play(workflow, "a", "b")
    assert left == ([True] if "hang" in answers else []), "its session is given back"


async def test_one_that_cannot_be_reached_is_named_and_one_without_an_end_is_cut_by_its_turns() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(OpenEnvError, match=f"the environment at {url}: it cannot be reached"):
        await play(Told(url), "a")

    async def go_on(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            await socket.send_str(observed(reward=0.5))
        return socket

    app = web.Application()
    app.router.add_get("/ws", go_on)
    async with listening(app, "127.0.0.1", 0, setting="a test", shutdown_s=0.1) as address:
        rollout, engine = await play(Guessing(f"ws://{address}"), "a", "b", "c", "d")
    assert engine.requests[0].prompt == 'system: Play.\nuser: {"told":"go"}\nassistant: ', "metadata are not for it"
    assert (rollout.reward, rollout.metrics["turns"], rollout.metrics["truncated"]) == (2.0, 4.0, 1.0)
