"""OpenAI's responses with its own client and real HTTP on both sides, on FAKE engines."""

import json
from typing import Any

import openai
import pytest

from schemas.topics import TURNS
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus
from tests.support.gateway.rig import ASKED, KEY, OTHERS_KEY, Rig, rig, say
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.chat import responses
from trinity_bus.gateway import sessions
from trinity_bus.runtime.http import session_key

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TOOLS: list[Any] = [
    {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}
]
RESULT = {"type": "function_call_output", "call_id": "call00000", "output": "2"}


async def respond(client: openai.AsyncOpenAI, given: Any = "6*7=", **how: Any) -> Any:
    return await client.responses.create(model="policy", input=given, **how)


def prompts(here: Rig) -> list[str]:
    return ["".join(map(chr, prompt)) for prompt in here.engines["explorer-0"].prompts]


async def contributed(here: Rig) -> list[Any]:
    return [rollout for task in here.gateway._sessions.pending("me") for rollout in task.rollouts]


async def test_a_response_is_what_an_explorer_draws_and_says_what_it_was_made_with() -> None:
    async with rig() as here, here.client() as client:
        engine = here.engines["explorer-0"]
        answer = await respond(client, instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=99, top_p=1)
        assert (answer.output_text, answer.status, answer.incomplete_details) == ("42", "completed", None)
        assert prompts(here) == ["system: Be brief.\nuser: 6*7=\nassistant: "]
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(prompts(here)[0]), 2)
        assert (answer.instructions, answer.metadata, answer.max_output_tokens) == ("Be brief.", {"a": "b"}, 99)
        assert (answer.temperature, answer.top_p, answer.parallel_tool_calls) == (1.0, 1.0, True)
        engine.answer = "<think>Six times seven.</think>42"
        reasoning, message = (await respond(client)).output
        assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Six times seven.")
        assert (message.type, message.content[0].text) == ("message", "42")
        engine.reason = "length"
        cut = await respond(client)
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert [item.status for item in cut.output] == ["completed", "incomplete"]
        assert cut.usage.output_tokens_details.reasoning_tokens == len("Six times seven.")
        assert await here.post("/feedback", reward=1, msg_ids=[answer.id, cut.id]) == (
            200,
            {"status": "success", "counted": 2},
        )


async def test_events_come_in_their_order_as_it_is_drawn_and_are_the_response() -> None:
    async with rig() as here, here.client() as client:
        engine = here.engines["explorer-0"]
        engine.answer = f"<think>Hm.</think>So: {CALL}"
        stream = await respond(client, tools=TOOLS, stream=True)
        events = [event async for event in stream]
        kinds = [event.type.removeprefix("response.") for event in events]
        assert kinds == [
            *("created", "in_progress"),
            *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
            *("content_part.done", "output_item.done"),
            *("output_item.added", "content_part.added", *["output_text.delta"] * 3, "output_text.done"),
            *("content_part.done", "output_item.done"),
            *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
            *("output_item.done", "completed"),
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert [item.to_dict() for item in done] == [item.to_dict() for item in events[-1].response.output]
        whole = await respond(client, tools=TOOLS)
        assert [_shown(item) for item in whole.output] == [_shown(item) for item in done]

        async with client.responses.stream(model="policy", input="6*7=", tools=TOOLS) as helped:
            texts = [event.delta async for event in helped if event.type == "response.output_text.delta"]
            final: Any = await helped.get_final_response()
        assert ("".join(texts), final.output_text) == ("So:", "So:")
        assert final.output[2].arguments == done[2].arguments
        engine.answer, engine.hang_after = "So: 42", 3
        async with await respond(client, stream=True) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta" and event.delta == ":":
                    assert engine.waiting == 1
                    break
        await until(lambda: engine.aborted == 1)


def _shown(item: Any) -> Any:
    return {name: value for name, value in item.to_dict().items() if name != "id"}


async def test_a_stream_that_is_cut_or_fails_says_so_in_its_last_event() -> None:
    async with rig(engine_wait_s=0.1) as here, here.client() as client:
        engine = here.engines["explorer-0"]
        engine.reason = "length"
        *_, last = [event async for event in await respond(client, stream=True)]
        assert (last.type, last.response.incomplete_details.reason) == ("response.incomplete", "max_output_tokens")
        engine.hang_after = 1
        events = []
        async for event in await respond(client, stream=True):
            events.append(event)
            if event.type == "response.output_text.delta":
                await here.lose("explorer-0")
        assert (events[-1].type, events[-1].response.status) == ("response.failed", "failed")
        assert "no explorer" in events[-1].response.error.message


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_response_is_continued_by_its_id_with_the_tokens_that_were_drawn(session: str | None) -> None:
    async with rig() as here, here.client(session=session) as client:
        engine = here.engines["explorer-0"]
        engine.answer = "4 2 "
        first = await respond(client)
        engine.answer = CALL
        second = await respond(client, "Sure?", previous_response_id=first.id, tools=TOOLS)
        engine.answer = "yes"
        third = await respond(client, [RESULT], previous_response_id=second.id, tools=TOOLS)
        # The tools are new in the second request, and the history with them; what follows is what was drawn.
        assert prompts(here)[2].startswith(prompts(here)[1] + CALL)
        again = await respond(client, "Again", previous_response_id=first.id)
        assert prompts(here)[3] == "user: 6*7=\nassistant: 4 2 \nuser: Again\nassistant: "
        assert again.previous_response_id == first.id
        await here.post("/feedback", reward=1, msg_ids=[third.id, again.id])
        rollouts = await contributed(here)
        assert [len(one.turn_starts) for one in rollouts] == [2, 2]
        assert [bytes(one.response_token_ids).decode()[:4] for one in rollouts] == ["4 2 ", CALL[:4]]
        names = {task.task_id for task in here.gateway._sessions.pending("me")}
        assert names == {f"me/{session or first.id}"}


async def test_a_continued_conversation_is_one_task_and_its_first_turn_alone_stands_on_the_log_as_one() -> None:
    async with rig() as here, here.client() as client, FakeCoordinator(FakeBus(here.log)).running() as coordinator:
        first = await respond(client)
        second = await respond(client, "Sure?", previous_response_id=first.id)
        await here.post("/feedback", reward=1, msg_ids=[second.id], task_id="mine")
        assert (await here.post("/commit"))[1]["contributed"] == {"mine": 1}
        assert list(coordinator.contributed) == ["mine"]
        await until(lambda: len(here.log.all(TURNS)) == 2)
        turns = [record_of(received) for received in here.log.all(TURNS)]
        assert [(turn.task_id, turn.prompt is not None) for turn in turns] == [
            (f"me/{first.id}", True),
            (f"me/{first.id}", False),
        ]
        with pytest.raises(openai.NotFoundError):
            await respond(client, "And?", previous_response_id=second.id)


async def test_what_another_client_or_session_was_answered_or_what_was_not_stored_is_not_there() -> None:
    async with rig() as here, here.client() as client, here.client(OTHERS_KEY) as other:
        mine, chat = await respond(client), await say(client)
        secret = await respond(client, store=False)
        async with here.client(session="s") as inside, here.client(session="t") as beside:
            theirs = await respond(inside)
            for asks, previous in (
                (other, mine.id),
                (inside, mine.id),
                (beside, theirs.id),
                (client, theirs.id),
                (client, secret.id),
                (client, chat.id),
                (client, "resp_unknown"),
            ):
                with pytest.raises(openai.NotFoundError, match="is not known, or was not stored") as refused:
                    await respond(asks, previous_response_id=previous)
                assert refused.value.param == "previous_response_id"
        assert (await here.post("/feedback", reward=1, msg_ids=[secret.id]))[0] == 200


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_stored_response_is_had_again_and_deleted_by_its_id(session: str | None) -> None:
    async with rig() as here, here.client(session=session) as client:
        engine = here.engines["explorer-0"]
        engine.answer = f"<think>Hm.</think>So: {CALL}"
        first = await respond(client, tools=TOOLS, metadata={"a": "b"})
        *_, last = [event async for event in await respond(client, stream=True, previous_response_id=first.id)]
        second = last.response
        for one in (first, second):
            assert (await client.responses.retrieve(one.id)).to_dict() == one.to_dict()
        # The agent that runs in a session has its own as well, by the session's key.
        if session is not None:
            async with here.client(session_key(KEY, session), session=session) as agent:
                assert (await agent.responses.retrieve(first.id)).id == first.id
        with pytest.raises(openai.BadRequestError, match="stream"):
            await client.responses.retrieve(first.id, stream=True)
        held = here.gateway._sessions
        before = held._tokens["me"]
        await client.responses.delete(first.id)
        assert held._tokens["me"] < before
        ways: list[Any] = [client.responses.retrieve, client.responses.delete]
        for again in ways:
            with pytest.raises(openai.NotFoundError, match="is not known, or was not stored"):
                await again(first.id)
        with pytest.raises(openai.NotFoundError):
            await respond(client, previous_response_id=first.id)
        # What continues it goes on, and it may still get its reward.
        engine.answer = "yes"
        await respond(client, "And?", previous_response_id=second.id)
        assert prompts(here)[-1].endswith("user: And?\nassistant: ")
        assert prompts(here)[-1].startswith("user: 6*7=\nassistant: ")
        assert (await here.post("/feedback", reward=1, msg_ids=[first.id, second.id]))[1]["counted"] == 2


@pytest.mark.parametrize("session", [None, "s"])
async def test_the_items_that_a_response_was_made_from_are_had_page_by_page(session: str | None) -> None:
    async with rig() as here, here.client(session=session) as client:
        engine = here.engines["explorer-0"]
        engine.answer = f"So: {CALL}"
        first = await respond(client, [{"role": "developer", "content": "Add."}, ASKED[0]], tools=TOOLS)
        engine.answer = "2"
        second = await respond(client, [RESULT, ASKED[0]], previous_response_id=first.id, tools=TOOLS)
        pages = client.responses.input_items
        items: list[Any] = [item async for item in pages.list(second.id, limit=2, order="asc")]
        assert [(item.type, getattr(item, "role", None)) for item in items] == [
            ("message", "developer"),
            ("message", "user"),
            ("message", "assistant"),
            ("function_call", None),
            ("function_call_output", None),
            ("message", "user"),
        ]
        assert [items[place].content[0].text for place in (0, 1, 2)] == ["Add.", ASKED[0]["content"], "So:"]
        assert (items[3].name, items[3].arguments, items[3].call_id) == ("add", '{"a": 1}', items[4].call_id)
        assert items[4].output == RESULT["output"]
        assert len({item.id for item in items}) == len(items)
        latest: Any = await pages.list(second.id, limit=1)
        assert (latest.data[0].id, latest.has_more, latest.first_id) == (items[5].id, True, items[5].id)
        assert [item.id async for item in pages.list(second.id, after=items[1].id)] == [items[0].id]
        assert (await pages.list(second.id, order="asc", after=items[5].id)).data == []
        own = [item async for item in pages.list(first.id)]
        assert [item.role for item in own if item.type == "message"] == ["user", "developer"]
        # What is sent again reads as it was.
        again = await respond(client, [item.to_dict() for item in items], tools=TOOLS, store=False)
        assert again.status == "completed"
        assert prompts(here)[-1].replace(" <", "<") == prompts(here)[-2].replace(" <", "<")
        for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "item_x"}, {"include": ["x"]}):
            with pytest.raises(openai.BadRequestError, match=f"query.{next(iter(wrong))}"):
                await pages.list(second.id, **wrong)


async def test_a_response_that_is_anothers_or_of_another_session_or_not_stored_is_neither_had_nor_deleted() -> None:
    async with rig() as here, here.client() as client, here.client(OTHERS_KEY) as other:
        mine, secret, chat = await respond(client), await respond(client, store=False), await say(client)
        async with here.client(session="s") as inside, here.client(session_key(KEY, "t"), session="t") as beside:
            theirs = await respond(inside)
            for asks, answer_id in (
                (other, mine.id),
                (inside, mine.id),
                (beside, mine.id),
                (beside, theirs.id),
                (client, theirs.id),
                (client, secret.id),
                (client, chat.id),
                (client, "resp_unknown"),
            ):
                ways: list[Any] = [asks.responses.retrieve, asks.responses.delete, asks.responses.input_items.list]
                for way in ways:
                    with pytest.raises(openai.NotFoundError, match="is not known, or was not stored"):
                        await way(answer_id)
            assert (await inside.responses.retrieve(theirs.id)).id == theirs.id
        async with here.client(session_key(KEY, "t")) as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.responses.retrieve(mine.id)
        assert (await client.responses.retrieve(mine.id)).id == mine.id
        await here.post("/feedback", reward=1, msg_ids=[mine.id])
        here.gateway._sessions.settled(here.gateway._sessions.pending("me")[0])
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(mine.id)


async def test_a_response_repeats_what_is_known_and_items_are_read_as_the_model_sees_them() -> None:
    async with rig() as here, here.client(session="s") as client:
        call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": " " * 999}
        refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
        answer = await respond(
            client,
            [{"role": "user", "content": "6*7="}, refusal, call, {**call, "arguments": '{ "a" : "\u00e9" }'}, RESULT],
            reasoning={"effort": "high"},
            text={"verbosity": "low", "format": {"type": "text", "more": "x"}},
            tools=TOOLS,
            tool_choice={"type": "function", "name": "add", "more": "x"},
        )
        assert "more" not in answer.to_json()
        assert "assistant: No." in prompts(here)[0]
        (told,) = here.gateway._sessions._open["me", "s"].told.values()
        calls = json.loads(told.asked)[1]["tool_calls"]
        assert [one["function"]["arguments"] for one in calls] == ["{}", '{"a": "\u00e9"}']


async def test_items_that_are_sent_back_continue_a_session() -> None:
    async with rig() as here, here.client(session="s") as client:
        engine = here.engines["explorer-0"]
        engine.answer = f"<think>Hm.</think>So: {CALL}"
        said: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "6*7="}]}]
        async with client.responses.stream(model="policy", input=said, tools=TOOLS) as stream:
            answer = await stream.get_final_response()
        said += [*answer.output, RESULT]
        engine.answer = "2"
        await respond(client, said, tools=TOOLS)
        first, second = prompts(here)
        assert second.startswith(first + f"<think>Hm.</think>So: {CALL}")
        assert second.endswith("tool: 2\nassistant: ")
        # A history from elsewhere does not have two calls of one id.
        engine.answer = CALL
        async with here.client() as fresh:
            (call,) = (await respond(fresh, said, tools=TOOLS)).output
        assert call.call_id == "call00001"


async def test_it_is_drawn_as_it_asks_and_no_sample_has_two_temperatures() -> None:
    async with rig() as here, here.client(session="s") as client:
        first = await respond(client)
        cold = await respond(client, "Sure?", previous_response_id=first.id, temperature=0.5, top_p=0.9)
        assert (cold.temperature, cold.top_p) == (0.5, 0.9)
        await respond(client, "And?", previous_response_id=cold.id, temperature=0.5, top_p=0.9)
        await here.post("/feedback", reward=1, session="s")
        rollouts = await contributed(here)
        assert [(one.sampling.temperature, one.sampling.top_p) for one in rollouts] == [(1.0, None), (0.5, 0.9)]
        assert [len(one.turn_starts) for one in rollouts] == [1, 2]
        assert prompts(here)[1].startswith(prompts(here)[0] + "42")
        await until(lambda: bool(here.log.all(TURNS)))
        # Another gateway could not know how these were drawn.
        assert len(here.log.all(TURNS)) == 1


async def test_a_call_or_a_shape_can_be_required() -> None:
    async with rig() as here, here.client() as client:
        here.engines["explorer-0"].answer = CALL
        choices: list[Any] = ["required", {"type": "function", "name": "add"}]
        for choice in choices:
            (call,) = (await respond(client, tools=TOOLS, tool_choice=choice)).output
            assert (call.type, call.name, call.arguments) == ("function_call", "add", '{"a": 1}')
        (message,) = (await respond(client, tools=TOOLS, tool_choice="none")).output
        assert message.content[0].text == CALL
        shape: Any = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}
        answer = await respond(client, text=shape)
        assert answer.text.format.name == "n"
        await here.post("/feedback", reward=1, msg_ids=[answer.id])
        (rollout,) = await contributed(here)
        assert rollout.sampling.altered_by == ("structured_outputs",)


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("truncation", {"truncation": "auto"}),
        ("background", {"background": True}),
        ("conversation", {"conversation": "c"}),
        ("include", {"include": ["message.output_text.logprobs"]}),
        ("reasoning.summary", {"reasoning": {"effort": "high", "summary": "detailed"}}),
        ("tools", {"tools": [{**TOOLS[0], "parameters": {"x": "x" * responses.MAX_TOLD}}], "tool_choice": "none"}),
        ("instructions", {"instructions": "x" * responses.MAX_TOLD}),
        ("text", {"text": {"format": {"type": "json_schema", "schema": {"x": "x" * responses.MAX_TOLD}}}}),
        ("text.format", {"text": {"format": {"type": "grammar"}}}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[1].name", {"tools": [*TOOLS, {"type": "function", "name": "", "parameters": {}}]}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "name": "sub"}}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("temperature", {"temperature": 11}),
        ("top_p", {"top_p": -1}),
        ("metadata", {"metadata": {"x" * 65: "y"}}),
        ("stream", {"extra_body": {"stream": "false"}}),
        ("store", {"extra_body": {"store": 1}}),
        ("stop", {"extra_body": {"stop": ["a"]}}),
        ("input", {"given": None, "extra_body": {"input": 7}}),
        ("input[0].content[0]", {"given": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input[0].role", {"given": [{"role": "robot", "content": "x"}]}),
        ("input[1].type", {"given": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "x"}]}),
        ("input[0].encrypted_content", {"given": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}),
        ("input[0].call_id", {"given": [{"type": "function_call_output", "call_id": "x" * 129, "output": "2"}]}),
    ],
)
async def test_what_cannot_be_had_is_refused_by_its_name(field: str, asked: dict[str, Any]) -> None:
    async with rig() as here, here.client() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await respond(client, **asked)
        assert (refused.value.param, refused.value.type) == (field, "invalid_request_error")
        assert field in refused.value.message
        assert here.engines["explorer-0"].prompts == []


async def test_items_and_stored_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_ITEMS", 2)
    monkeypatch.setattr(sessions, "MOST_TOLD", 2000)
    async with rig(max_sessions=2) as here, here.client() as client:
        first = await respond(client)
        with pytest.raises(openai.BadRequestError, match="at most 2 objects"):
            await respond(client, [ASKED[0]] * 3)
        long = await respond(client, "x" * 2000)
        with pytest.raises(openai.NotFoundError):
            await respond(client, previous_response_id=long.id)
        held = here.gateway._sessions
        assert held._tokens["me"] > sum(map(len, here.engines["explorer-0"].prompts)) + 2 * len("42")
        await respond(client)
        with pytest.raises(openai.NotFoundError):
            await respond(client, previous_response_id=first.id)
        assert len(held) == 2


async def test_a_chain_goes_on_where_its_answers_cannot_all_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as here, here.client() as client:
        first = await respond(client, instructions="x" * 2000)
        monkeypatch.setattr(sessions, "MOST_TOLD", 4000)
        second = await respond(client, previous_response_id=first.id, instructions="x" * 2000)
        with pytest.raises(openai.NotFoundError, match="can be continued"):
            await client.responses.retrieve(first.id)
        assert (await client.responses.retrieve(second.id)).id == second.id
        for one in (first, second):
            await respond(client, previous_response_id=one.id)
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await respond(client, previous_response_id=first.id)
