"""Somebody who may write ``explorer-events`` says that an explorer answers at their address: nothing is sent there.

Else prompts would go there, with the key of all explorers, and what came back would be believed.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from schemas import ExplorerHeartbeat, ExplorerLeft
from schemas.topics import EXPLORER_EVENTS
from tests.support.fakes.log import FakeBus
from tests.support.gateway.rig import ASKED, SECRET, Rig, rig
from tests.support.mesh.waiting import until
from trinity_bus.config import ExplorerSettings, KafkaSettings, Settings
from trinity_bus.gateway import explorers
from trinity_bus.gateway.fleet import presence_of, with_proof
from workers.preconditions import problems


def beat(**said: Any) -> ExplorerHeartbeat:
    own = {"explorer": "explorer-9", "incarnation": "life", "state": "ready", "slots": 1, **said}
    return ExplorerHeartbeat.model_validate(own)


def proof_of(**said: Any) -> str:
    return with_proof(beat(**said), SECRET.get_secret_value()).address_proof


async def ask(here: Rig, times: int) -> None:
    for number in range(times):
        status, _ = await here.post("/v1/chat/completions", messages=ASKED, max_tokens=4, seed=number)
        assert status == 200


async def heard(here: Rig, said: ExplorerHeartbeat) -> None:
    """Has a heartbeat written, and waits until the gateway has read it: that of an honest one comes behind it."""
    await (await FakeBus(here.log).producer().send(EXPLORER_EVENTS, said.explorer, said))
    await here.heard("explorer-0")
    await until(lambda: [one.name for one in here.gateway.explorers.usable] == ["explorer-0"])


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lambda _: "", id="no proof"),
        pytest.param(lambda _: "0" * 64, id="a guess"),
        pytest.param(lambda at: with_proof(beat(address=at), "another key").address_proof, id="another key"),
        pytest.param(lambda _: proof_of(address="127.0.0.1:9"), id="of another address"),
        pytest.param(lambda at: proof_of(address=at, explorer="explorer-8"), id="of another explorer"),
        pytest.param(lambda at: proof_of(address=at, incarnation="former"), id="of another life"),
        pytest.param(lambda at: proof_of(address=at, pool="judge"), id="of another pool"),
    ],
)
async def test_nothing_is_sent_to_an_address_without_its_proof(forged: Callable[[str], str]) -> None:
    asked: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1))
        writer.close()

    stranger = await asyncio.start_server(listen, "127.0.0.1", 0)
    address = f"127.0.0.1:{stranger.sockets[0].getsockname()[1]}"
    async with stranger, rig() as here:
        await heard(here, beat(address=address, address_proof=forged(address)))
        await ask(here, 4)
    assert not asked


@pytest.mark.parametrize("answers", ["nothing", "what the explorer says to it", "what was said once"])
async def test_an_old_heartbeat_that_is_written_again_leads_nobody_to_who_has_its_address_now(answers: str) -> None:
    """The explorer is gone, its address is a stranger's, and its proof lies on the log for all to read."""
    asked: list[str] = []
    heads: list[str] = []
    async with rig() as here, aiohttp.ClientSession() as strangers:
        honest = here.sides["explorer-0"]
        once = "0" * 64

        async def answer(request: web.Request) -> web.Response:
            asked.append(request.path)
            heads.append(request.headers.get("Authorization", ""))
            if answers == "nothing":
                return web.Response(status=404)
            if answers == "what was said once":
                return web.Response(text=once)
            async with strangers.get(f"http://{honest.address}{request.path_qs}") as passed_on:
                return web.Response(text=await passed_on.text())

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(app) as stranger:
            # Of the true key, and of an explorer that was there.
            old = with_proof(beat(address=f"127.0.0.1:{stranger.port}"), SECRET.get_secret_value())
            once = presence_of(old).answer("0" * 32, SECRET.get_secret_value())
            await (await FakeBus(here.log).producer().send(EXPLORER_EVENTS, old.explorer, old))
            await until(lambda: len(here.gateway.explorers.usable) == 2)
            await here.heard("explorer-0", running=[])
            await ask(here, 8)
        assert set(asked) <= {"/proof"}, "no prompt was sent there"
        assert asked, "it was its turn, too"
        assert not any(heads), "nor the key"


@pytest.mark.parametrize("ends", ["it has left", "it is killed"])
async def test_who_was_asked_before_proves_anew_where_somebody_else_may_have_the_address(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with rig(2) as here:
        events = FakeBus(here.log).producer()

        async def usable(*names: str) -> None:
            await until(lambda: [one.name for one in here.gateway.explorers.usable] == [*names])

        await ask(here, 8)
        assert here.engines["explorer-1"].prompts, "it has been met"
        gone = here.sides["explorer-1"]
        old = gone.told(beat(explorer="explorer-1"))
        await here.lose("explorer-1")
        if ends == "it has left":
            left = ExplorerLeft(explorer="explorer-1", incarnation="life")
            await (await events.send(EXPLORER_EVENTS, "explorer-1", left))
            await usable("explorer-0")
        else:
            monkeypatch.setattr(explorers, "_PROVED_S", 0.0)
        async with TestServer(app, port=int(gone.address.rpartition(":")[2])):
            await (await events.send(EXPLORER_EVENTS, "explorer-1", old))
            await usable("explorer-0", "explorer-1")
            await ask(here, 8)
    assert set(asked) == {"/proof"}


def test_a_key_that_can_be_guessed_from_its_proofs_is_refused() -> None:
    explorer = ExplorerSettings(http_port=0, http_key=SecretStr("guessed"))
    found = problems("explorer", Settings(kafka=KafkaSettings(bootstrap_servers="fake:9092"), explorer=explorer))
    assert any("HTTP_KEY has 7 characters, and needs 16 or more" in one for one in found)
