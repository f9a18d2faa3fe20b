"""An explorer tells in its heartbeats where gateways can ask it; told to go, it ends what it has begun."""

import asyncio

import aiohttp
import pytest
from pydantic import SecretStr

from schemas import ExplorerHeartbeat, ExplorerLeft
from tests.integration.explorer.test_explorer import exploring, fork_server, mesh_of, settings
from tests.support.fakes.engine import FakeEngine
from tests.support.mesh.waiting import until
from trinity_bus.config import Settings
from trinity_bus.gateway import wire
from trinity_bus.runners.fork_server import ForkServer

pytestmark = pytest.mark.integration

__all__ = ["fork_server", "settings"]


async def test_gateways_are_told_where_it_answers_and_it_drains(settings: Settings, fork_server: ForkServer) -> None:
    explorer = settings.explorer.model_copy(update={"http_port": 0, "http_key": SecretStr("secret"), "drain_s": 60.0})
    settings = settings.model_copy(update={"explorer": explorer})
    engine = FakeEngine()
    engine.open.clear()
    async with mesh_of(settings) as mesh, exploring(settings, engine, fork_server) as running:
        beat = await mesh.event(ExplorerHeartbeat, lambda beat: beat.state == "ready")
        assert beat.address.startswith("127.0.0.1:")
        ask = wire.encode_ask(wire.Ask(prompt=wire.token_bytes([1, 2]), sampling={}))
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as http:
            url = f"http://{beat.address}{wire.PATH}"
            asked = asyncio.create_task(http.post(url, data=ask))
            await until(lambda: engine.waiting == 1)
            running.cancel()
            await mesh.event(ExplorerHeartbeat, lambda beat: beat.state == "draining")
            engine.open.set()
            response = await asked
            (frame,) = wire.FrameFeed().feed(await response.read())
            assert isinstance(frame, wire.DrawnFrame)
            assert wire.tokens_of(frame.token_ids) == [ord("4"), ord("2")]
        await mesh.event(ExplorerLeft)
