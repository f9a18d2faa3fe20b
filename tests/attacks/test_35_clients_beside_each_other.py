"""One client of a gateway says as much as it can, or has a commit that hangs: the others lose nothing by it."""

import asyncio
from typing import Any

import pytest

from tests.support.gateway.rig import ASKED, KEY, OTHERS_KEY, rig
from tests.support.mesh.waiting import until
from tests.unit.gateway.test_sessions import say, sessions
from trinity_bus.client.channel import CommandChannel
from trinity_bus.client.experiences import Published


def test_who_says_much_forgets_its_own() -> None:
    here = sessions(most=10)
    say(here, here.open("me", "a", 0), "mine")
    for number in range(100):
        say(here, here.open("you", str(number), 1 + number / 1000, single=True), str(number))
    assert len(here) == 10
    assert here.feedback("me", ["mine"], 1.0) == 1
    assert here.feedback("you", ["99", "91"], 1.0) == 2


async def test_a_commit_that_hangs_is_that_of_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    async def contribute(channel: CommandChannel, published: Published, covers: Any = None) -> Any:
        del channel, covers
        asked.append(published.task_id)
        await asyncio.Event().wait()

    monkeypatch.setattr(CommandChannel, "contribute", contribute)
    async with rig() as here:
        for key in (KEY, OTHERS_KEY):
            _, answer = await here.post("/v1/chat/completions", key, messages=ASKED)
            await here.post("/feedback", key, msg_ids=[answer["id"]], reward=1)
        commits = [asyncio.create_task(here.post("/commit", key)) for key in (KEY, OTHERS_KEY)]
        await until(lambda: len(asked) == 2, 30)
        for one in commits:
            one.cancel()
        await asyncio.wait(commits)


def test_what_is_remembered_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.gateway.sessions.MOST_TOKENS", 5000, raising=False)
    here = sessions(most=1000)
    say(here, here.open("me", "a", 0), "mine")
    for number in range(10):
        say(here, here.open("you", "long", 1), f"long-{number}", [{"role": "user", "content": str(number) * 100}])
        say(here, here.open("you", str(number), 1, single=True), str(number), [{"role": "user", "content": "x" * 1000}])
    assert len(here) < 8
    assert here.feedback("me", ["mine"], 1.0) == 1
    assert here.feedback("you", ["9"], 1.0) == 1
