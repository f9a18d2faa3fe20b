"""An explorer tells in its heartbeats where gateways can ask it; told to go, it ends what it has begun."""

import asyncio

import aiohttp
import pytest
from pydantic import SecretStr

from schemas import ExplorerHeartbeat, ExplorerLeft, RolloutFinished, Task
from schemas.topics import EXPLORER_EVENTS
from tests.integration.explorer.explorers import dispatch, exploring, mesh_of
from tests.support.fakes.engine import FakeEngine
from tests.support.gateway.rig import JUDGE
from tests.support.mesh.waiting import until
from trinity_bus.chat import wire
from trinity_bus.config import ExplorerSettings, Settings
from trinity_bus.inference.concurrency import ConcurrencyController
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.testing import CharacterTokenizer
from workers.explorer.http_side import HttpSide
from workers.explorer.weights import ServedVersion

pytestmark = pytest.mark.integration


async def test_gateways_are_told_where_it_answers_and_it_drains(settings: Settings, fork_server: ForkServer) -> None:
    explorer = settings.explorer.model_copy(update={"http_port": 0, "http_key": SecretStr("secret"), "drain_s": 60.0})
    settings = settings.model_copy(update={"explorer": explorer})
    engine = FakeEngine()
    engine.open.clear()
    async with mesh_of(settings) as mesh, exploring(settings, engine, fork_server) as running:
        beat = await mesh.event(ExplorerHeartbeat, lambda beat: beat.state == "ready")
        assert beat.address.startswith("127.0.0.1:")
        assert beat.settings["explorer.drain_s"] == "60.0"
        ask = wire.ASKS.encode(wire.Ask(wire.token_bytes([1, 2]), b"{}"))
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as http:
            url = f"http://{beat.address}{wire.PATH}"
            asked = asyncio.create_task(http.post(url, data=ask))
            await until(lambda: engine.waiting == 1)
            running.cancel()
            await mesh.event(ExplorerHeartbeat, lambda beat: beat.state == "draining")
            engine.open.set()
            response = await asked
            (body,) = wire.frame_reader().feed(await response.read())
            frame = wire.decode_frame(body)
            assert isinstance(frame, wire.DrawnFrame)
            assert wire.tokens_of(frame.token_ids) == [ord("4"), ord("2")]
        await mesh.event(ExplorerLeft)


async def test_a_workflow_asks_an_explorer_of_another_pool(settings: Settings, fork_server: ForkServer) -> None:
    own = {"http_key": SecretStr("secret"), "auxiliary_pools": "judge", "auxiliary_wait_s": 3.0, "max_tokens": 9}
    settings = settings.model_copy(update={"explorer": settings.explorer.model_copy(update=own)})
    listening = ExplorerSettings(http_port=0, http_key=SecretStr("secret"))
    judge = FakeEngine(version=-1, answer="ok")
    async with (
        HttpSide(listening, judge, ServedVersion(-1), ConcurrencyController(64, 1), CharacterTokenizer) as side,
        mesh_of(settings) as mesh,
        exploring(settings, FakeEngine(), fork_server),
    ):
        incarnation = await mesh.joined()
        async with mesh.bus.producer() as producer:
            await (await producer.send(EXPLORER_EVENTS, "judge-0", side.told(JUDGE)))

        async def consulted(number: int, pool: str) -> RolloutFinished:
            task = Task(task_id=f"t-{number}", workflow="consult", prompt=pool)
            order = dispatch(incarnation, task.task_id, task=task, attempt=number, repeat_times=1)
            await mesh.send(order)
            return await mesh.event(RolloutFinished)

        finished = await consulted(1, "judge")
        assert finished.status == "completed", finished.error
        (group,) = await mesh.experiences()
        assert group.rewards.tolist() == [2.0]
        assert not any(judge.trained)
        assert group.teacher_logprobs is not None
        refused = await consulted(2, "nobody")
        assert (refused.status, "UnknownPoolError" in str(refused.error)) == ("failed", True)
        await side.drain(0)
        lost = await consulted(3, "judge")
        assert (lost.status, "NoEngineError" in str(lost.error)) == ("failed", True)
        assert len(await mesh.experiences()) == 1
