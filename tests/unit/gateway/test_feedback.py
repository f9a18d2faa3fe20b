"""Feedback and commit with OpenAI's client, on FAKE engines and a FAKE coordinator; Anthropic's client."""

from functools import partial
from typing import Any

import aiohttp
import anthropic
import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from schemas import ExperienceGroup, Turn
from schemas.topics import EXPERIENCES, TURNS
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus
from tests.support.gateway.rig import ADD, ASKED, KEY, OTHERS_KEY, Rig, rig, say
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.health.process import readings


async def ask(here: Rig, session: str | None = None, **options: Any) -> str:
    async with here.client(session=session) as client:
        answer = await say(client, **options)
    return str(answer.id)


async def test_what_has_a_reward_is_contributed_with_the_tokens_that_were_drawn() -> None:
    async with rig() as here, FakeCoordinator(FakeBus(here.log)).running() as coordinator:
        answers = [await ask(here, n=2), await ask(here)]
        assert await here.post("/feedback", reward=1, msg_ids=answers) == (200, {"status": "success", "counted": 2})
        assert (await here.post("/feedback", reward=0, msg_ids=answers))[1]["counted"] == 0
        status, body = await here.post("/commit")
        assert (status, body["refused"]) == (200, {})
        assert body["contributed"] == {f"me/{answers[0]}": 2, f"me/{answers[1]}": 1}
        assert set(coordinator.contributed) == set(body["contributed"])
        groups = [record_of(received) for received in here.log.all(EXPERIENCES)]
        for sample in [sample for group in groups for sample in group.samples()]:
            assert "".join(map(chr, sample.tokens)) == "user: 6*7=\nassistant: 42"
            assert (sample.mask.tolist(), sample.logprobs.tolist(), sample.reward) == ([True] * 2, [-0.5] * 2, 1.0)
        assert all(isinstance(group, ExperienceGroup) for group in groups)
        assert (await here.post("/commit"))[1]["contributed"] == {}


async def test_routes_come_with_answers_and_are_of_all_samples_of_a_task_or_of_none() -> None:
    async with rig() as here, FakeCoordinator(FakeBus(here.log)).running():
        engine = here.engines["explorer-0"]
        engine.expert = 5
        async with here.client(session="s") as client:
            stream = await say(client, stream=True)
            assert [chunk async for chunk in stream]
        routed = await ask(here)
        engine.expert = None
        without = await ask(here)
        rewards: list[dict[str, Any]] = [
            {"msg_ids": [routed], "task_id": "all"},
            {"session": "s", "task_id": "some"},
            {"msg_ids": [without], "task_id": "some"},
        ]
        for one in rewards:
            await here.post("/feedback", reward=1, **one)
        assert (await here.post("/commit"))[0] == 200
        groups = {group.task_id: group for group in map(record_of, here.log.all(EXPERIENCES))}
        (sample,) = groups["all"].samples()
        assert sample.routes.tolist() == [[[5], [5]]] * len(sample.tokens)
        assert (len(groups["some"]), groups["some"].routes) == (2, None)


async def test_routes_of_a_session_are_those_with_which_each_token_was_first_run() -> None:
    async with rig() as here, here.client(session="s") as client:
        said: list[Any] = ASKED
        for expert in (3, 5):
            here.engines["explorer-0"].expert = expert
            answer = await say(client, said)
            said = [*said, answer.choices[0].message.model_dump(exclude_none=True), *ASKED]
        await here.post("/feedback", reward=1, session="s")
        ((rollout,),) = [one.rollouts for one in here.gateway._sessions.pending("me")]
        first = len("user: 6*7=\nassistant: 42") - 1
        assert rollout.routes is not None
        assert rollout.routes[:, 0, 0].tolist() == [3] * first + [5] * (len(rollout.routes) - first)
        assert len(rollout.routes) == len(rollout.prompt_token_ids) + len(rollout.response_token_ids) - 1


async def test_a_known_task_is_refused_by_that_name_and_not_tried_again() -> None:
    async with rig() as here, FakeCoordinator(FakeBus(here.log)).running():
        for wanted in (200, 409):
            await here.post("/feedback", reward=1, msg_ids=[await ask(here)], task_id="mine")
            status, body = await here.post("/commit")
            assert status == wanted
        assert body["refused"]["mine"].startswith("known_task")
        assert await here.post("/commit") == (200, {"status": "success", "contributed": {}, "refused": {}})


async def test_feedback_on_what_is_unknown_or_no_feedback_is_refused() -> None:
    async with rig() as here:
        answer = await ask(here)
        for status, body in (
            (404, {"reward": 1, "msg_ids": ["unknown"]}),
            (404, {"reward": 1, "session": "unknown"}),
            (400, {"reward": "much", "msg_ids": [answer]}),
            (400, {"reward": 1}),
            (400, {"reward": 1, "msg_ids": [answer], "unknown": 1}),
            (400, {"reward": 1, "msg_ids": [answer], "task_id": "no id"}),
        ):
            assert (await here.post("/feedback", **body))[0] == status
        assert (await here.post("/feedback", OTHERS_KEY, reward=1, msg_ids=[answer]))[0] == 404


async def test_turns_of_a_session_are_on_the_log_after_the_answer() -> None:
    async with rig() as here:
        async with here.client(session="s-1") as client:
            first = await say(client)
            told = [*ASKED, first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "?"}]
            await say(client, told)
        await until(lambda: len(here.log.all(TURNS)) == 2)
        turns = [record_of(received) for received in here.log.all(TURNS)]
        assert all(isinstance(turn, Turn) for turn in turns)
        assert [(turn.task_id, turn.number, turn.workflow) for turn in turns] == [
            ("me/s-1", 0, "gateway"),
            ("me/s-1", 1, "gateway"),
        ]
        # What was drawn is prompted with as it was drawn.
        assert "".join(map(chr, here.engines["explorer-0"].prompts[1])).startswith("user: 6*7=\nassistant: 42")
        status, body = await here.post("/sessions/s-1/feedback", reward=0.5)
        assert (status, body["counted"]) == (200, 1)


async def test_after_a_call_that_was_streamed_a_session_goes_on_with_what_was_drawn() -> None:
    async with rig() as here, here.client(session="s") as client:
        engine, call = here.engines["explorer-0"], 'So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        engine.answer = call
        async with client.chat.completions.stream(model="policy", messages=ASKED, tools=ADD) as stream:
            said = (await stream.get_final_completion()).choices[0].message.model_dump(exclude_none=True)
        engine.answer = "2"
        told = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "2"}
        await say(client, [*ASKED, said, told], tools=ADD)
        first, second = engine.prompts
        assert second[: len(first) + len(call)] == [*first, *map(ord, call)]
        await here.post("/feedback", session="s", reward=1)
        ((rollout,),) = [one.rollouts for one in here.gateway._sessions.pending("me")]
        assert rollout.mask is not None
        assert (rollout.turn_starts, sum(rollout.mask)) == ([0, len(rollout.mask) - 1], len(call) + 1)


async def test_what_the_broker_does_not_take_can_be_committed_again() -> None:
    async with rig() as here:
        await here.post("/feedback", reward=1, msg_ids=[await ask(here)])
        here.log.refuse_sends = 1
        status, _ = await here.post("/commit")
        assert status == 503
        async with FakeCoordinator(FakeBus(here.log)).running():
            status, body = await here.post("/commit")
            assert (status, list(body["contributed"].values())) == (200, [1])


async def test_anthropics_client_is_answered_in_its_own_words() -> None:
    async with rig() as here, anthropic.AsyncAnthropic(base_url=here.url, api_key=KEY, max_retries=0) as client:
        asked: Any = {"model": "policy", "max_tokens": 99, "messages": ASKED, "system": "Be brief."}
        message = await client.messages.create(**asked)
        assert [block.text for block in message.content if block.type == "text"] == ["42"]
        assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 2)
        (prompt,) = here.engines["explorer-0"].prompts
        assert "".join(map(chr, prompt)) == "system: Be brief.\nuser: 6*7=\nassistant: "
        here.engines["explorer-0"].answer = 'So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        tools: Any = [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}]
        async with client.messages.stream(**asked, tools=tools) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert "".join(texts) == "So:"
        (use,) = [block for block in final.content if block.type == "tool_use"]
        assert (use.name, use.input, final.stop_reason) == ("add", {"a": 1}, "tool_use")
        back = [
            *ASKED,
            {"role": "assistant", "content": [block.model_dump() for block in final.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "2"}]},
        ]
        await client.messages.create(**{**asked, "messages": back}, tools=tools)
        assert (await client.messages.count_tokens(model="policy", messages=ASKED)).input_tokens == 22
        for wrong in ({"model": "another"}, {"messages": [{"role": "robot", "content": ""}]}):
            with pytest.raises(anthropic.APIStatusError) as refused:
                await client.messages.create(**{**asked, **wrong})
            assert refused.value.status_code in (400, 404)
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="wrong").messages.create(**asked)


async def test_a_turn_that_anthropics_client_has_begun_is_gone_on_with() -> None:
    url: Any = "{}/sessions/s"
    async with rig() as here, anthropic.AsyncAnthropic(base_url=url.format(here.url), api_key=KEY) as client:
        prompts = here.engines["explorer-0"].prompts
        begun: Any = {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}
        asked: Any = {"model": "policy", "max_tokens": 99}
        message = await client.messages.create(**asked, messages=[*ASKED, begun])
        assert [block.text for block in message.content if block.type == "text"] == ["42"]
        first = "user: 6*7=\nassistant: It is"
        assert "".join(map(chr, prompts[0])) == first
        counted = await client.messages.count_tokens(model="policy", messages=[*ASKED, begun])
        assert (message.usage.input_tokens, counted.input_tokens) == (len(first), len(first))
        history: Any = [*ASKED, {"role": "assistant", "content": "It is42"}, *ASKED, {**begun, "content": "Still"}]
        async with client.messages.stream(**asked, messages=history) as stream:
            assert "".join([text async for text in stream.text_stream]) == "42"
        second = f"{first}42\nuser: 6*7=\nassistant: Still"
        assert "".join(map(chr, prompts[1])) == second
        await here.post("/feedback", session="s", reward=1)
        ((rollout,),) = [task.rollouts for task in here.gateway._sessions.pending("me")]
        assert len(rollout.prompt_token_ids) == len(first)
        at = len(second) - len(first)
        assert np.flatnonzero(np.asarray(rollout.mask)).tolist() == [0, 1, at, at + 1]
        use = {"type": "tool_use", "id": "a", "name": "add", "input": {}}
        for wrong in ("It is ", [*begun["content"], use]):
            messages: Any = [*ASKED, {**begun, "content": wrong}]
            with pytest.raises(anthropic.BadRequestError, match="is text to continue"):
                await client.messages.create(**asked, messages=messages)


async def test_a_call_can_be_required_by_either_client_and_is_noted() -> None:
    function: Any = {"name": "add", "parameters": {"type": "object"}}
    async with rig() as here, here.client(session="s") as client:
        here.engines["explorer-0"].answer = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
        choices: list[Any] = ["required", {"type": "function", "function": {"name": "add"}}]
        for choice in choices:
            asked: Any = {"messages": ASKED, "tools": [{"type": "function", "function": function}]}
            answer = await client.chat.completions.create(model="policy", tool_choice=choice, **asked)
            assert answer.choices[0].finish_reason == "tool_calls"
        with pytest.raises(openai.BadRequestError, match="not among the tools"):
            await say(client, tool_choice="required")
        await here.post("/feedback", session="s", reward=1)
        (task,) = here.gateway._sessions.pending("me")
        assert [one.sampling.altered_by for one in task.rollouts if one.sampling] == [("structured_outputs",)] * 2
    async with rig() as here, anthropic.AsyncAnthropic(base_url=here.url, api_key=KEY, max_retries=0) as other:
        here.engines["explorer-0"].answer = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
        tools: Any = [{"name": "add", "input_schema": {"type": "object"}}]
        for wanted in ({"type": "any"}, {"type": "tool", "name": "add"}, {"type": "auto"}):
            how: Any = {"max_tokens": 99, "messages": ASKED, "tools": tools, "tool_choice": wanted}
            message = await other.messages.create(model="policy", **how)
            assert message.stop_reason == "tool_use"
        with pytest.raises(anthropic.BadRequestError, match="not among the tools"):
            await other.messages.create(**{**how, "model": "policy", "tool_choice": {"type": "tool", "name": "sub"}})


async def test_reasoning_is_a_block_of_its_own_where_anthropics_client_asks_for_it() -> None:
    async with rig() as here, anthropic.AsyncAnthropic(base_url=here.url, api_key=KEY, max_retries=0) as client:
        here.engines["explorer-0"].answer = "<think>Six times seven.</think>42"
        asked: Any = {"model": "policy", "max_tokens": 2048, "messages": ASKED}
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        plain = await client.messages.create(**asked)
        assert [block.type for block in plain.content] == ["text"]
        message = await client.messages.create(**asked, thinking=thinking)
        async with client.messages.stream(**asked, thinking=thinking) as stream:
            assert [text async for text in stream.text_stream] == ["4", "2"]
            streamed = await stream.get_final_message()
        for said in (message, streamed):
            blocks = [block.model_dump() for block in said.content]
            assert [block["type"] for block in blocks] == ["thinking", "text"]
            assert (blocks[0]["thinking"], blocks[1]["text"]) == ("Six times seven.", "42")
        # Sent back, it is passed over: what was drawn is known.
        back = [{"role": "assistant", "content": [block.model_dump() for block in message.content]}]
        await client.messages.create(**{**asked, "messages": [*ASKED, *back, *ASKED]}, thinking=thinking)


async def figures(here: Rig) -> dict[str, float]:
    async with aiohttp.ClientSession() as http, http.get(f"{here.url}/metrics") as response:
        assert response.status == 200
        families = text_string_to_metric_families(await response.text())
        return {
            "/".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }


async def test_requests_tokens_and_rewards_are_counted() -> None:
    async with rig() as here:
        answer = await ask(here)
        await here.post("/feedback", reward=1, msg_ids=[answer])
        await here.post("/feedback", "wrong", reward=1, msg_ids=[answer])
        found = await figures(here)
        # It is not ready while these stand still.
        assert await readings() == {"explorers' heartbeats": True}
    assert await readings() == {}
    assert found["gateway_requests_total//v1/chat/completions/200"] == 1
    assert (found["gateway_requests_total//feedback/200"], found["gateway_requests_total//feedback/401"]) == (1, 1)
    assert (found["gateway_tokens_total/prompt"], found["gateway_tokens_total/response"]) == (22, 2)
    duration = "gateway_request_duration_seconds"
    assert found[f"{duration}_count//feedback"] == found[f"{duration}_bucket/+Inf//feedback"] == 2
    assert 0 < found[f"{duration}_sum//feedback"] < 600
    assert (found["gateway_ready_samples"], found["gateway_sessions"]) == (1, 1)
    assert (found["gateway_explorer_version/explorer-0"], found["gateway_explorer_requests/explorer-0"]) == (0, 0)
    assert found["gateway_turns_passed_over_total"] == found["gateway_moved_requests_total"] == 0


async def test_rewritten_histories_branches_and_unreadable_calls_are_counted_as_runners_do() -> None:
    async with rig() as here:
        here.engines["explorer-0"].answer = "<tool_call>{</tool_call>"
        async with here.client(session="s-1") as client:
            say = partial(client.chat.completions.create, model="policy", tools=ADD)
            answers = [await say(messages=ASKED) for _ in range(2)]
            changed = [{"role": "user", "content": "Other?"}, *ASKED]
            answers.append(await say(messages=changed))
        await here.post("/feedback", reward=1, session="s-1")
        (contribution,) = here.gateway._sessions.pending("me")
        found = await figures(here)
    for name, count in (("rewrites", 1), ("branches", 1), ("tool_call_flaws", 3)):
        assert found[f"gateway_{name}_total"] == count
        assert [rollout.metrics[name] for rollout in contribution.rollouts] == [count] * 3
    assert [rollout.metrics["turns"] for rollout in contribution.rollouts] == [3.0] * 3
