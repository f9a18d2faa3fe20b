import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import openai
import pytest

from schemas.topics import TURNS
from tests.support.fakes.log import FakeLog, FakeProducer
from tests.support.gateway.rig import ASKED, KEY, OTHERS_KEY, Rig, rig, say
from tests.support.mesh.waiting import until
from trinity_bus.bus import Producer
from trinity_bus.chat.messages import Completion
from trinity_bus.runtime.http import SMALL, session_key
from trinity_bus.testing import CharacterTokenizer
from workers.gateway import request_run, turn_finder
from workers.gateway.turn_finder import TurnLog


async def test_turns_that_wait_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_finder, "MOST_BYTES", 100)
    log = FakeLog()
    kept = TurnLog(cast("Producer", FakeProducer(log)), gateway="g", incarnation="life", workflow="w")
    drawn = [Completion([65] * 5, [-0.5] * 5, "stop", [])]
    for number in range(4):
        kept.keep("t", number, [1], drawn, answer_id="a", alone=False)
    assert kept.passed_over == 2
    sending = asyncio.create_task(kept.run())
    await until(lambda: len(log.all(TURNS)) == 2)
    kept.keep("t", 4, [1], drawn, answer_id="a", alone=False)
    await until(lambda: len(log.all(TURNS)) == 3)
    assert kept.passed_over == 2
    sending.cancel()


async def begun(
    here: Rig, length: int, body: bytes = b"", *, key: str = KEY, session: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request of which no more comes than this."""
    host, _, port = here.gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = f"{session and f'/sessions/{session}'}/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    return reader, writer


async def test_a_request_that_never_ends_holds_its_place_for_a_while_and_no_longer() -> None:
    async with rig(max_requests=1, body_timeout_s=0.2) as here, here.client() as client:
        reader, writer = await begun(here, 100, b"not all of it")
        async with asyncio.timeout(60):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        await say(client)
        writer.close()


class SlowTemplate:
    """Has a large conversation written when it is let, and counts how many are written at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.writing, self.at_once = threading.Event(), 0, 0
        written = CharacterTokenizer.apply_chat_template

        def slow(tokenizer: CharacterTokenizer, conversation: list[dict[str, Any]], **options: Any) -> Any:
            if len(conversation[0]["content"]) < request_run.LARGE:
                return written(tokenizer, conversation, **options)
            self.writing += 1
            self.at_once = max(self.at_once, self.writing)
            try:
                assert self.go_on.wait(60)
                return written(tokenizer, conversation, **options)
            finally:
                self.writing -= 1

        monkeypatch.setattr(CharacterTokenizer, "apply_chat_template", slow)


async def test_others_are_answered_while_a_large_conversation_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    template = SlowTemplate(monkeypatch)
    async with rig() as here, here.client() as client:
        asked = asyncio.create_task(say(client, [{"role": "user", "content": "x" * request_run.LARGE}]))
        try:
            for _ in range(3):
                await say(client)
            assert not asked.done()
        finally:
            template.go_on.set()
        assert (await asked).choices[0].message.content == "42"


async def test_a_client_that_went_away_holds_room_until_all_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    template, large = SlowTemplate(monkeypatch), [{"role": "user", "content": "x" * (SMALL + 1)}]
    async with rig() as here, here.client() as client, here.client() as other:
        door = here.gateway._door
        gone = asyncio.create_task(say(client, large))
        try:
            await until(lambda: template.writing == 1)
            gone.cancel()
            asked = asyncio.create_task(say(other, large))
            await until(lambda: template.at_once == 2 or (door.requests == 2 and door._room.taken > 2 * SMALL))
        finally:
            template.go_on.set()
        with pytest.raises(openai.BadRequestError, match="the model takes"):
            await asked
        assert template.at_once == 1
        await until(lambda: door.requests == 0 and door._room.taken == 0)


async def test_large_requests_of_all_clients_share_room_and_small_ones_need_none() -> None:
    """A client sends the heads of large requests and no more: it has half of the room, and others go on."""
    async with rig(max_body_mib=1, max_waiting_mib=2, body_timeout_s=3.0) as here:
        held = [await begun(here, 1 << 20) for _ in range(2)]
        await until(lambda: here.gateway._door._room.taken == 1 << 20)
        large: list[Any] = [{"role": "user", "content": "x" * 100_000}]
        async with here.client() as client, here.client(OTHERS_KEY) as other:
            await say(client)
            with pytest.raises(openai.BadRequestError, match="the model takes"):
                await say(other, large)
        told = [await reader.readline() for reader, _ in held]
        # One waited for the other's room, and had what was left of its time for its body.
        assert {line.split()[1] for line in told} <= {b"408", b"503"}
        for _, writer in held:
            writer.close()
        await until(lambda: here.gateway._door._room.taken == 0)


async def test_a_sessions_key_shuts_out_neither_its_owner_nor_another_session() -> None:
    async with rig(max_requests=3, max_body_mib=1, max_waiting_mib=2) as here:
        engine, door = here.engines["explorer-0"], here.gateway._door
        slow = [await begun(here, 1 << 20, key=session_key(KEY, f"s{i}"), session=f"s{i}") for i in range(3)]
        await until(lambda: door.requests == 3 and door._room.taken == 1 << 19)
        # Half of its owner's room is free of all sessions.
        mine = await begun(here, 1 << 19)
        await until(lambda: door._room.taken == 1 << 20)
        for _, writer in (*slow, mine):
            writer.close()
        await until(lambda: door.requests == door._room.taken == 0)
        here.hold()

        def asked(session: str) -> asyncio.Task[tuple[int, Any]]:
            path = f"/sessions/{session}/v1/chat/completions"
            return asyncio.create_task(here.post(path, session_key(KEY, session), messages=ASKED))

        held = []
        for session in "abc":
            held.append(asked(session))
            await until(lambda: engine.waiting == len(held))
            assert (await asked(session))[0] == 429
        assert (await asked("d"))[0] == 429
        held.append(asyncio.create_task(here.post("/v1/chat/completions", messages=ASKED)))
        await until(lambda: engine.waiting == len(held))
        here.go_on()
        assert [(await one)[0] for one in held] == [200] * 4
        assert not door._requests


async def test_what_is_stored_of_a_large_request_holds_its_room_until_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_run, "_MUCH", 1)
    given: Any = [{"type": "message", "role": "user", "content": "6*7=", "id": "x" * SMALL}]
    async with rig() as here, here.client() as client:
        engine, door = here.engines["explorer-0"], here.gateway._door
        for stored in (False, True):
            here.hold()
            asked = asyncio.create_task(client.responses.create(model="policy", input=given, store=stored))
            await until(lambda: engine.waiting == 1)
            held = door._room.taken
            here.go_on()
            await asked
            assert (held > SMALL) == stored
        assert door._room.taken == 0


async def test_a_request_of_no_length_is_held_to_the_largest() -> None:
    async with rig(max_body_mib=1) as here, aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http:

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b"x" * (1 << 16)

        async with http.post(f"{here.url}/v1/chat/completions", data=endless()) as response:
            assert response.status == 413
        assert here.gateway._door._room.taken == 0
