"""Whatever a client asks, a model writes or an explorer answers, it is told what is wrong: never "internal error".

And a stranger who opens connections, and sends half a request on each, holds no socket for an hour.
"""

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.gateway.rig import ASKED, KEY, SECRET, rig
from trinity_bus.chat import wire
from trinity_bus.gateway.fleet import Presence

MINE = {"Authorization": f"Bearer {KEY}"}
DEEP = b"[" * 50_000 + b"]" * 50_000
CHAT = [
    b'{"\\ud800": 1}',
    b'{"messages": ' + DEEP + b"}",
    b'{"messages": [{"role": "user", "content": "x"}], "model": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"messages": [{"role": "user", "content": "x"}], "response_format": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": ["x", 1]}]}',
    b'{"messages": [{"role": "assistant", "content": "x", "tool_calls": 1}]}',
    b'{"messages": [{"role": "assistant", "content": "x", "tool_calls": {"a": 1}}]}',
    b'{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "\\ud800", "arguments": 1e400}}]}]}',
    b'{"messages": [{"role": "user", "content": "x", "name": {"a": [NaN, 1e400, 1%s]}}]}' % (b"0" * 4000),
    b'{"messages": [{"role": 1}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1e400}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": NaN}',
    b'{"messages": [{"role": "user", "content": "x"}], "stop": [["x"]]}',
    b'{"messages": [{"role": "user", "content": "x"}], "stop": "\\ud800"}',
    b'{"messages": [{"role": "user", "content": "x"}], "stop": ""}',
    b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": 1}]}',
    b'{"messages": [{"role": "user", "content": "\xff"}]}',
    b"\xff\xfe{",
    b"\x00",
]
MESSAGES = [
    *CHAT,
    b'{"messages": [{"role": "user", "content": [{"type": ["x"]}]}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "tool_result", "content": {"type": 1}}]}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "tool_use", "name": "x", "input": '
    + b"[" * 900
    + b"]" * 900
    + b"}]}]}",
    b'{"messages": [], "tools": [{"name": "x", "input_schema": 1, "description": 1}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "system": [1]}',
]
RESPONSES = [
    *CHAT[:2],
    b'{"input": "\\ud800"}',
    b'{"input": "x", "instructions": "\\ud800"}',
    b'{"input": "x", "metadata": {"\\ud800": "x"}}',
    b'{"input": "x", "previous_response_id": "\\ud800"}',
    b'{"input": "x", "temperature": 1e400, "top_p": NaN}',
    b'{"input": "x", "text": {"format": ' + b"[" * 900 + b"]" * 900 + b"}}",
    b'{"input": {"a": 1}}',
    b'{"input": [{"type": ["x"]}, 1]}',
    b'{"input": [{"role": "user", "content": [{"type": [], "text": 1}]}]}',
    b'{"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "{\\"a\\": \\"\\\\ud800\\"}"}]}',
    b'{"input": "x", "tools": [{"type": "function", "name": "\\ud800"}]}',
]
PROMPTS = [b'{"prompt": "\\ud800"}', b'{"prompt": [2147483647]}', b'{"prompt": [true]}', b'{"prompt": {"a": 1}}']
FEEDBACK = [
    b'{"session": "\xff", "reward": 1}',
    b'{"reward": 1e400, "msg_ids": ["x"]}',
    b'{"reward": 1, "msg_ids": ["\\ud800"]}',
    b'{"reward": 1, "session": "x", "task_id": "\\u0000"}',
    b'{"reward": ' + DEEP + b"}",
    b"\xff",
]
ALL = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/completions": PROMPTS,
    "/feedback": FEEDBACK,
    "/commit": [b'{"task_ids": ["\xff"]}', b'{"task_ids": ["\\ud800"]}', DEEP],
    "/sessions/..%2f..%2fetc/v1/completions": [b'{"prompt": "x"}'],
    "/sessions/%ff%00/v1/completions": [b'{"prompt": "x"}'],
}


async def test_no_request_is_a_fault_of_the_program() -> None:
    async with rig() as here, aiohttp.ClientSession(headers=MINE) as http:
        told: list[tuple[str, bytes, int, str]] = []
        for path, bodies in ALL.items():
            for body in bodies:
                async with http.post(f"{here.url}{path}", data=body) as response:
                    text = await response.text()
                    if response.status >= 500:
                        told.append((path, body[:120], response.status, text[:200]))
        assert told == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "call", ['{"name": "f\\ud800", "arguments": {}}', '{"name": "f", "arguments": {"a": "\\ud800"}}']
)
async def test_half_a_character_in_a_tool_call_is_a_flaw_of_the_call(path: str, stream: bool, call: str) -> None:
    async with rig() as here, aiohttp.ClientSession(headers=MINE) as http:
        here.engines["explorer-0"].answer = f"<tool_call>{call}</tool_call>"
        body = {"messages": ASKED, "max_tokens": 200, "stream": stream}
        async with http.post(f"{here.url}{path}", json=body) as response:
            text = await response.text()
        assert response.status == 200, text
        assert "error" not in text


async def answered_by(handler: Any) -> tuple[int, Any]:
    """Asks a gateway whose only explorer answers so."""
    address = ""

    async def prove(request: web.Request) -> web.Response:
        presence = Presence("explorer-0", "life", None, address)
        return web.Response(text=presence.answer(request.query["nonce"], SECRET.get_secret_value()))

    app = web.Application()
    app.router.add_post(wire.PATH, handler)
    app.router.add_get(wire.PROOF_PATH, prove)
    async with rig(explorers=0, engine_wait_s=0.1) as here, TestServer(app) as explorer:
        address = f"{explorer.host}:{explorer.port}"
        await here.heard("explorer-0", address=address)
        return await here.post("/v1/chat/completions", messages=ASKED, max_tokens=4)


def frame(**said: Any) -> bytes:
    drawn = {"index": 0, "token_ids": b"", "logprobs": b"", "version": 0, "finish_reason": "stop", **said}
    return wire.FRAMES.frame(wire.DrawnFrame(**drawn))


@pytest.mark.parametrize(
    "answer",
    [
        frame(finish_reason="ab").replace(b"ab", b"\xff\xff"),
        frame(token_ids=wire.token_bytes([65] * 5), logprobs=wire.logprob_bytes([0.0] * 5)),
        frame(token_ids=wire.token_bytes([-1]), logprobs=wire.logprob_bytes([0.0])),
        frame(finish_reason="x" * 65),
        frame(versions=[(-5, 1)]),
        frame(version=1 << 63),
        frame(routes=wire.Routes(experts=b"abc", layers=2, k=1)),
        frame(routes=wire.Routes(experts=b"abcd", layers=2, k=1)),
        b"\x00\x00\x00\x05" + b"\x91" * 5,
    ],
    ids=[
        "no-utf8",
        "more-than-asked",
        "no-token",
        "long-reason",
        "no-span",
        "no-version",
        "part-of-a-route",
        "routes-of-others",
        "nested",
    ],
)
async def test_what_no_explorer_may_answer_is_its_failure(answer: bytes) -> None:
    asked = 0

    async def generate(request: web.Request) -> web.Response:
        nonlocal asked
        await request.read()
        asked += 1
        return web.Response(body=answer)

    status, told = await answered_by(generate)
    assert asked == 1
    assert (status, told["error"]["type"]) in ((502, "server_error"), (503, "overloaded_error"))
    assert "internal error" not in str(told)


async def test_a_prompt_is_not_sent_on_to_whom_an_explorer_names() -> None:
    reached = []

    async def elsewhere(request: web.Request) -> web.Response:
        reached.append(request.headers.get("Authorization"))
        return web.Response(body=frame())

    app = web.Application()
    app.router.add_post("/elsewhere", elsewhere)
    async with TestServer(app) as other:
        asked = 0

        async def generate(request: web.Request) -> web.Response:
            nonlocal asked
            await request.read()
            asked += 1
            raise web.HTTPTemporaryRedirect(other.make_url("/elsewhere"))

        status, _ = await answered_by(generate)
    assert (status, reached, asked) == (503, [], 1)


@pytest.mark.parametrize("half", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: "])
@pytest.mark.parametrize("whose", ["gateway", "explorer"])
async def test_half_a_request_does_not_hold_a_socket(half: bytes, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.runtime.http._IDLE_S", 0.2)
    async with rig() as here:
        address = here.gateway.address if whose == "gateway" else here.sides["explorer-0"].address
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(half)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
