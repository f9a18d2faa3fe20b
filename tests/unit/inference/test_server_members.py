"""An explorer that stands for several servers, FAKE ones over real HTTP: who is asked, and who takes which version."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas import Sampling
from schemas.event import EngineMember
from tests.support.mesh.waiting import until
from tests.unit.inference.test_server_engine import PROMPT, FakeServer, announced, engine_at, model, proven, served
from trinity_bus.inference.errors import EngineStartError, GenerationError
from trinity_bus.inference.server import engine as server_engine
from trinity_bus.inference.server.engine import ServerEngine

__all__ = ["model", "proven"]

THREE = Sampling(max_tokens=3)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "_HEALTH_S", 0.01)
    monkeypatch.setattr(server_engine, "_CATCH_UP_S", 0.05)


@asynccontextmanager
async def looked_after(engine: ServerEngine) -> AsyncIterator[asyncio.Task[object]]:
    looking: asyncio.Task[object] = asyncio.create_task(engine.wait_dead())
    try:
        yield looking
    finally:
        looking.cancel()
        await asyncio.wait([looking])


def states(engine: ServerEngine) -> list[tuple[str, int]]:
    return [(one.state, one.model_version) for one in engine.members]


async def test_the_idlest_is_asked_and_each_takes_a_version(model: Path, proven: list[str]) -> None:
    pair = [FakeServer(), FakeServer()]
    async with served(pair[0]) as a, served(pair[1]) as b, engine_at(f"{a},{b}", model) as engine:
        for server in pair:
            server.open.clear()
            server.asked.clear()
        asking = [asyncio.create_task(engine.generate(PROMPT, THREE)) for _ in range(4)]
        await until(lambda: [len(server.asked) for server in pair] == [2, 2])
        await engine.sync_weights(*announced())
        for server in pair:
            server.open.set()
        assert [drawn.versions for (drawn,) in await asyncio.gather(*asking)] == [[(1, 3)]] * 4
        assert engine.members == [
            EngineMember(address=url.removeprefix("http://"), state="serving", model_version=3) for url in (a, b)
        ]
        assert len(proven) == 1


async def test_one_that_has_not_the_version_is_asked_nothing_until_it_has_taken_it(
    model: Path, proven: list[str]
) -> None:
    anew, other = FakeServer(), FakeServer()
    async with served(anew) as a, served(other) as b, engine_at(f"{a},{b}", model, caches="kept") as engine:
        await engine.sync_weights(*announced())
        async with looked_after(engine):
            anew.loads, anew.label = False, "default"
            await until(lambda: states(engine) == [("behind", -1), ("serving", 3)])
            anew.asked.clear()
            for _ in range(3):
                assert (await engine.generate(PROMPT, THREE))[0].versions == [(0, 3)]
            assert anew.asked == []
            anew.loads = True
            await until(lambda: states(engine) == [("serving", 3)] * 2)
            assert (await engine.generate(PROMPT, THREE))[0].versions == [(0, 3)]
            assert len(anew.asked) == 1
            pauses = [call.split()[0] for call in anew.calls if "/pause" in call]
            assert (pauses[0][-5:], {call[-4:] for call in pauses[1:]}) == ("false", {"true"})
            assert set(proven) == {"/checkpoints/step-3"}


async def test_one_may_die_and_come_back_and_none_is_the_end(model: Path, proven: list[str]) -> None:
    async with served(FakeServer()) as a, served(FakeServer()) as freed:
        port = int(freed.rpartition(":")[2])
    async with served(FakeServer(), int(a.rpartition(":")[2])), engine_at(f"{a},{freed}", model) as engine:
        # One is there at the start, and the other is not yet.
        assert states(engine) == [("serving", -1), ("gone", -1)]
        async with looked_after(engine) as looking:
            await engine.sync_weights(*announced())
            for _ in range(2):
                async with served(FakeServer(), port):
                    await until(lambda: states(engine) == [("serving", 3)] * 2)
                await until(lambda: states(engine) == [("serving", 3), ("gone", 3)])
                assert (await engine.generate(PROMPT, THREE))[0].versions == [(0, 3)]
            assert not looking.done()
            engine._members[0].label = None
            assert "gone" in str(await looking)


async def test_servers_of_two_kinds_are_no_engine(model: Path) -> None:
    async with served(FakeServer()) as a, served(FakeServer(owned_by="sglang")) as b:
        with pytest.raises(EngineStartError, match="where others of"):
            async with engine_at(f"{a},{b}", model):
                """Not reached."""


async def test_a_router_gets_requests_and_its_servers_versions(model: Path, proven: list[str]) -> None:
    router, server = FakeServer(), FakeServer()
    async with served(server) as behind, engine_at_router(behind, router, model) as engine:
        server.asked.clear()
        await engine.sync_weights(*announced())
        assert router.calls == []
        # It asks a server that is behind, each time or once.
        router.asked.clear()
        with pytest.raises(GenerationError, match="'default' drew"):
            await engine.generate(PROMPT, THREE)
        assert len(router.asked) == 3
        router.open.clear()
        asking = asyncio.create_task(engine.generate(PROMPT, THREE))
        await until(lambda: len(router.asked) == 4)
        router.label = server.label
        router.open.set()
        assert (await asking)[0].versions == [(0, 3)]
        assert (len(router.asked), server.asked) == (5, [])


async def test_a_router_needs_servers_that_tell_which_weights_drew(model: Path) -> None:
    async with served(FakeServer(owned_by="sglang")) as url:
        with pytest.raises(EngineStartError, match="unset it"):
            async with engine_at(url, model, engine_router=url):
                """Not reached."""
        async with engine_at(url, model, engine_router=url, follows="none") as engine:
            assert await engine.generate(PROMPT, THREE)


@asynccontextmanager
async def engine_at_router(urls: str, router: FakeServer, model: Path) -> AsyncIterator[ServerEngine]:
    async with served(router) as url, engine_at(urls, model, engine_router=url) as engine:
        yield engine


async def test_without_its_router_an_engine_is_dead(model: Path) -> None:
    async with served(FakeServer()) as gone:
        """Its address is free again."""
    async with served(FakeServer()) as url, engine_at(url, model, engine_router=gone) as engine:
        assert "router" in str(await asyncio.wait_for(engine.wait_dead(), 60))
