"""Requests of a runner, over a socket whose other end is this test."""

import asyncio
import socket
from typing import Any, cast

import pytest

from tests.support.fakes.engine import FakeEngine, FakePools
from trinity_bus.chat.wire import Ask, FailedFrame
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.errors import RequestRefusedError
from trinity_bus.runners.link import RunnerLink
from trinity_bus.runners.messages import TO_RUNNER, EngineRequest, RequestAnswered
from trinity_bus.runners.service import Runners
from trinity_bus.runtime.frames import FrameReader


class Refusing(FakeEngine):
    async def generate(self, *_: Any, **__: Any) -> Any:
        raise RequestRefusedError("half of it: \ud83d")


@pytest.mark.parametrize(
    ("n", "why"),
    [(1, r"half of it: \ud83d"), (1025, "1025 responses to one prompt; 1024 are the most")],
)
async def test_a_request_that_is_refused_is_answered(n: int, why: str) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        runners = Runners(cast("Any", None), Refusing(), ExplorerSettings(), FakePools())
        link = RunnerLink(0, ours, lambda *_: None, lambda *_: None)
        asked = EngineRequest(1, 2, Ask(b"", b"{}", n))
        link.requests.run(1)
        assert link.requests.receive(asked) == asked
        await runners._serve(link, asked)
        async with asyncio.timeout(60):
            said = await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        link.close()
    (body,) = FrameReader(TO_RUNNER.limit).feed(said)
    assert TO_RUNNER.decode(body) == RequestAnswered(1, 2, [FailedFrame(why, "RequestRefusedError")])
