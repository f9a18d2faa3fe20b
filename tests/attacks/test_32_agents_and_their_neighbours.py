"""What agents, and whoever else is on the machine, send to the endpoint of a run."""

import asyncio
import logging

import aiohttp
import pytest

from schemas import Task
from tests.unit.rollout.test_agents import USER, _registry, run
from trinity_bus.rollout.agents import Endpoint

__all__ = ["_registry"]


def test_a_key_that_is_no_text_is_a_wrong_key(caplog: pytest.LogCaptureFixture) -> None:
    async def act(task: Task, model: Endpoint) -> float:
        del task
        port = int(model.base_url.rsplit(":", 1)[1].removesuffix("/v1"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
        await writer.wait_closed()
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {model.api_key}"}) as http,
            http.post(f"{model.base_url}/chat/completions", json={"messages": [USER]}) as answer,
        ):
            assert answer.status == 200
        return 1.0

    (rollout,), _ = run(act, ["3"])
    assert rollout.reward == 1.0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_stop_of_no_letters_is_refused_before_anything_is_drawn() -> None:
    async def act(task: Task, model: Endpoint) -> float:
        del task
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {model.api_key}"}) as http:
            for stop, status in (([""], 400), ("", 400), (["x"], 200)):
                asked = {"messages": [USER], "stop": stop}
                async with http.post(f"{model.base_url}/chat/completions", json=asked) as answer:
                    assert answer.status == status
        return 1.0

    rollouts, _ = run(act, ["3", "4", "5"])
    assert len(rollouts) == 1, "what no agent was told of is not trained on"
