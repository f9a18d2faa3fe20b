"""A judge's server is somebody else's: it answers in pieces, sends questions on to others, and writes what it likes."""

import asyncio
import json
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from trinity_bus.rollout.scores import RewardError, judged
from trinity_bus.rollout.workflows import Answered

SAID = Answered("what was said", "", True)


async def score_of(app: web.Application, monkeypatch: pytest.MonkeyPatch) -> float:
    async with TestServer(app) as server:
        monkeypatch.setenv("JUDGE_URL", str(server.make_url("/v1")))
        return await judged("${response}", model="judge", timeout_s=5)(SAID)


def judge(text: str, pieces: int = 1) -> web.Application:
    async def answer(request: web.Request) -> web.StreamResponse:
        raw = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        response = web.StreamResponse()
        await response.prepare(request)
        size = -(-len(raw) // pieces)
        for start in range(0, len(raw), size):
            await response.write(raw[start : start + size])
            await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    return app


async def test_a_judgement_that_comes_in_pieces_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await score_of(judge("Score: 5", pieces=40), monkeypatch) == 0.5


async def test_reading_a_judgement_costs_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.process_time()
    with pytest.raises(RewardError, match="no score"):
        await score_of(judge("Score:" + " " * 20_000), monkeypatch)
    assert time.process_time() - began < 5


async def test_a_question_is_not_sent_on_to_whom_a_judge_names(monkeypatch: pytest.MonkeyPatch) -> None:
    app, reached = judge("Score: 10"), list[bytes]()

    async def elsewhere(request: web.Request) -> web.Response:
        reached.append(await request.read())
        return web.Response()

    app.router.add_post("/elsewhere", elsewhere)
    async with TestServer(app) as other:

        async def send_on(request: web.Request) -> web.Response:
            await request.read()
            raise web.HTTPTemporaryRedirect(other.make_url("/elsewhere"))

        sending = web.Application()
        sending.router.add_post("/v1/chat/completions", send_on)
        with pytest.raises(RewardError, match="307"):
            await score_of(sending, monkeypatch)
    assert reached == []
