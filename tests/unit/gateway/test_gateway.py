"""The gateway with OpenAI's own client and real HTTP on both sides, on FAKE engines."""

import asyncio
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest
from pydantic import ValidationError

from tests.support.gateway.rig import ADD, ASKED, OTHERS_KEY, SECRET, rig, say
from tests.support.mesh.waiting import until
from trinity_bus.chat import wire
from trinity_bus.config import GatewaySettings
from trinity_bus.inference.concurrency import ConcurrencyController, EngineLoad


async def test_a_conversation_is_answered_with_what_an_explorer_draws() -> None:
    async with rig() as here, here.client() as client:
        answer = await say(client, logprobs=True, n=2)
        assert [choice.message.content for choice in answer.choices] == ["42", "42"]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].logprobs is not None
        assert [one.logprob for one in answer.choices[0].logprobs.content or ()] == [-0.5, -0.5]
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len("user: 6*7=\nassistant: "), 4)
        (prompt,) = here.engines["explorer-0"].prompts
        assert "".join(map(chr, prompt)) == "user: 6*7=\nassistant: "
        assert [model.id async for model in client.models.list()] == ["policy"]


async def test_a_prompt_is_completed_as_it_stands() -> None:
    async with rig() as here, here.client() as client:
        answer = await client.completions.create(model="policy", prompt="6*7=")
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("42", "stop")
        here.engines["explorer-0"].answer = "42. So"
        answer = await client.completions.create(model="policy", prompt=[ord("?")], stop=". ")
        assert answer.choices[0].text == "42"
        chunks = [one async for one in await client.completions.create(model="policy", prompt="?", stream=True)]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "42. So"
        assert chunks[-1].choices[0].finish_reason == "stop"


async def test_what_is_streamed_comes_as_it_is_drawn_and_is_the_answer() -> None:
    async with rig() as here, here.client() as client:
        engine = here.engines["explorer-0"]
        engine.answer = 'So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        engine.hang_after = 5
        text = ""
        async with await say(client, tools=ADD, stream=True) as stream:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if text == "So:":
                    # Nothing more would come before it was seen.
                    assert engine.waiting == 1
                    break
        await until(lambda: engine.aborted == 1)
        engine.hang_after = None
        text, calls, reasons, usage = "", list[Any](), list[str](), None
        async for chunk in await say(client, tools=ADD, stream=True, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
                reasons += [choice.finish_reason] if choice.finish_reason else []
            usage = chunk.usage or usage
        assert text == "So:"
        assert [call.function.name for call in calls] == ["add"]
        assert reasons == ["tool_calls"]
        assert usage is not None
        assert usage.completion_tokens == len(engine.answer)


async def test_a_conversation_may_get_a_reward_so_it_is_asked_from_which_tokens_it_was_drawn() -> None:
    async with rig() as here, here.client() as client:
        await say(client)
        await (await say(client, stream=True)).close()
        assert here.engines["explorer-0"].trained == [True, True]


@pytest.mark.parametrize("lost", [1, 2])
async def test_an_answer_whose_explorers_are_lost_is_drawn_by_another_and_moved_once(lost: int) -> None:
    async with rig(explorers=3) as here, here.client() as client:
        here.hold()
        asked = asyncio.create_task(say(client))
        for _ in range(lost):
            await until(lambda: bool(here.waiting))
            (name,) = here.waiting
            del here.engines[name]
            await here.lose(name)
        here.go_on()
        assert (await asked).choices[0].message.content == "42"
        assert here.gateway.explorers.moved == 1


async def test_a_client_that_goes_away_has_its_request_aborted() -> None:
    async with rig() as here, here.client() as client:
        engine = here.engines["explorer-0"]
        engine.open.clear()
        asked = asyncio.create_task(say(client))
        await until(lambda: engine.waiting == 1)
        asked.cancel()
        await until(lambda: engine.aborted == 1)


async def test_who_has_no_key_and_more_requests_than_one_client_may_make_are_refused() -> None:
    async with rig(max_requests=1) as here, here.client() as client, here.client(OTHERS_KEY) as other:
        engine = here.engines["explorer-0"]
        async with here.client("wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await say(stranger)
        assert engine.prompts == []
        engine.open.clear()
        asked = asyncio.create_task(say(client))
        await until(lambda: engine.waiting == 1)
        with pytest.raises(openai.RateLimitError) as refused:
            await say(client)
        assert refused.value.response.headers["Retry-After"] == "1"
        others = asyncio.create_task(say(other))
        await until(lambda: engine.waiting == 2)
        engine.open.set()
        await asyncio.gather(asked, others)


async def test_what_cannot_be_had_is_refused_by_its_status() -> None:
    async with rig(timeout_s=0.2, engine_wait_s=0.1, max_body_mib=1) as here, here.client() as client:
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            await client.chat.completions.create(model="another", messages=ASKED)
        assert (await client.models.retrieve("policy")).id == "policy"
        with pytest.raises(openai.NotFoundError, match="'other/model' is not served here"):
            await client.models.retrieve("other/model")
        with pytest.raises(openai.BadRequestError, match="at least one message"):
            await client.chat.completions.create(model="policy", messages=[])
        with pytest.raises(openai.APIStatusError, match="1 MiB at most") as large:
            await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "x" * (1 << 20)}]
            )
        assert large.value.status_code == 413
        here.engines["explorer-0"].open.clear()
        with pytest.raises(openai.APIStatusError, match=r"no answer within 0\.2 s") as slow:
            await say(client)
        assert slow.value.status_code == 504
        await here.heard("explorer-0", state="draining")
        with pytest.raises(openai.InternalServerError, match="no explorer") as nobody:
            await say(client)
        assert (nobody.value.status_code, nobody.value.response.headers["Retry-After"]) == (503, "1")


def congest(controller: ConcurrencyController) -> None:
    """The engine has preempted a request, with all in flight that it bears."""
    load = EngineLoad(kv_usage=1.0, running=1, waiting=0, preempted=0, version=0)
    for preempted in range(2):
        controller.observe(replace(load, preempted=preempted), controller.limit, float(preempted))


async def test_a_congested_explorer_is_left_alone_and_where_all_are_it_is_503() -> None:
    async with rig(explorers=2, engine_wait_s=0.1) as here, here.client() as client:
        congest(here.bearable["explorer-0"])
        here.hold()
        # The least of requests are taken in any case.
        asked = [asyncio.create_task(say(client)) for _ in range(8)]
        await until(lambda: sum(engine.waiting for engine in here.engines.values()) == 8)
        assert here.engines["explorer-0"].waiting == 1
        congest(here.bearable["explorer-1"])
        with pytest.raises(openai.InternalServerError, match=r"no explorer|all that their engines bear") as refused:
            await say(client)
        assert (refused.value.status_code, refused.value.response.headers["Retry-After"]) == (503, "1")
        assert here.gateway.explorers.busy > 0
        assert [one.name for one in here.gateway.explorers.usable] == ["explorer-0", "explorer-1"]
        here.go_on()
        await asyncio.gather(*asked)


async def test_explorers_tell_of_their_requests() -> None:
    async with rig() as here, rig(explorers=0, log=here.log) as there, here.client() as client:
        engine, side = here.engines["explorer-0"], here.sides["explorer-0"]
        engine.open.clear()
        asked = asyncio.create_task(say(client))
        await until(lambda: engine.waiting == 1)
        there.sides["explorer-0"] = side
        for gateway, elsewhere in ((there, 1), (here, 0)):
            await gateway.heard("explorer-0")
            await until(lambda g=gateway, e=elsewhere: [o.elsewhere for o in g.gateway.explorers.usable] == [e], 10)  # type: ignore[misc]
        engine.open.set()
        await asked


async def test_an_explorer_answers_those_who_have_its_key_and_nothing_else() -> None:
    async with rig() as here, aiohttp.ClientSession() as http:
        url = f"http://{here.sides['explorer-0'].address}{wire.PATH}"
        right = {"Authorization": f"Bearer {SECRET.get_secret_value()}"}
        ask = wire.ASKS.encode(wire.Ask(wire.token_bytes([1]), b"{}"))
        for headers, body, status in (
            ({}, ask, 401),
            ({"Authorization": "Bearer wrong"}, ask, 401),
            (right, b"no request", 400),
            (right, wire.ASKS.encode(wire.Ask(b"abc", b"{}")), 400),
            (right, wire.ASKS.encode(wire.Ask(b"", b'{"temperature": -1}')), 400),
            (right, wire.ASKS.encode(wire.Ask(b"", b"{}", 0)), 400),
            (right, ask, 200),
        ):
            async with http.post(url, data=body, headers=headers) as response:
                assert response.status == status
        await here.sides["explorer-0"].drain(1)
        async with http.post(url, data=ask, headers=right) as response:
            assert response.status == 503


async def test_agents_are_told_the_address_that_they_reach(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "workers.gateway")
    async with rig(public_url="http://gateway:8000/"):
        assert "ready at http://gateway:8000/v1" in caplog.text
    async with rig() as here:
        assert f"ready at {here.url}/v1" in caplog.text
    assert GatewaySettings(port=8001).reached_at() == "http://127.0.0.1:8001"
    assert GatewaySettings(host="::1", port=8001).reached_at() == "http://[::1]:8001"
    for wrong in ("gateway:8000", "http://user@gateway:8000", "http://gateway:8000/?a=b"):
        with pytest.raises(ValidationError):
            GatewaySettings(public_url=wrong)
