"""What a gateway bounds: turns that wait for the broker, requests that never end, and what large ones cost others."""

import asyncio
import threading
from typing import Any, cast

import pytest

from schemas.topics import TURNS
from tests.support.fakes.log import FakeLog, FakeProducer
from tests.support.gateway.rig import KEY, rig
from tests.support.mesh.waiting import until
from tests.unit.gateway.test_gateway import ASKED
from trinity_bus.bus import Producer
from trinity_bus.gateway.explorers import Drawing
from trinity_bus.testing import CharacterTokenizer
from workers.gateway import request_run, turns
from workers.gateway.turns import TurnLog


async def test_turns_that_wait_are_bounded_by_their_bytes_and_room_is_made_as_they_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "MOST_BYTES", 100)
    log = FakeLog()
    kept = TurnLog(cast("Producer", FakeProducer(log)), gateway="g", incarnation="life", workflow="w")
    drawn = [Drawing([65] * 5, [-0.5] * 5, [], "stop")]
    for number in range(4):
        kept.keep("t", number, [1], drawn, answer_id="a", alone=False)
    assert kept.passed_over == 2
    sending = asyncio.create_task(kept.run())
    await until(lambda: len(log.all(TURNS)) == 2)
    kept.keep("t", 4, [1], drawn, answer_id="a", alone=False)
    await until(lambda: len(log.all(TURNS)) == 3)
    assert kept.passed_over == 2
    sending.cancel()


async def test_a_request_that_never_ends_holds_its_place_for_a_while_and_no_longer() -> None:
    async with rig(max_requests=1, body_timeout_s=0.2) as here, here.client() as client:
        host, _, port = here.gateway.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 100"
        writer.write(f"{head}\r\n\r\nnot all of it".encode())
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        await client.chat.completions.create(model="policy", messages=ASKED)
        writer.close()


async def test_others_are_answered_while_a_large_conversation_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, written = threading.Event(), CharacterTokenizer.apply_chat_template

    def slow(self: CharacterTokenizer, conversation: list[dict[str, Any]], **options: Any) -> Any:
        if len(conversation[0]["content"]) >= request_run.LARGE:
            assert go_on.wait(60)
        return written(self, conversation, **options)

    monkeypatch.setattr(CharacterTokenizer, "apply_chat_template", slow)
    async with rig() as here, here.client() as client:
        large: Any = [{"role": "user", "content": "x" * request_run.LARGE}]
        asked = asyncio.create_task(client.chat.completions.create(model="policy", messages=large))
        try:
            for _ in range(3):
                await client.chat.completions.create(model="policy", messages=ASKED)
            assert not asked.done()
        finally:
            go_on.set()
        assert (await asked).choices[0].message.content == "42"
