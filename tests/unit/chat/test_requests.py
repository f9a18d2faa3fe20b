import json
from typing import Any

import pytest

from schemas.sampling import Sampling
from tests.support.chat.models import tokenizer_of
from tests.support.narrowing import some
from tests.unit.chat.test_histories import TOOLS
from trinity_bus.chat import ChatError, Completion, ModelReply, Session, renderer_for
from trinity_bus.chat.anthropic import MessageShape, read_messages_request
from trinity_bus.chat.messages import for_template
from trinity_bus.chat.openai import MAX_PARTS, read_request
from trinity_bus.chat.responses import read_responses_request

USER = {"role": "user", "content": "go"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
JSON_ANSWER = '{"name": "Ada", "parameters": {"age": 36}}'
CUT_CALL = '<tool_call>\n{"name": "add", "argu'


def said(family: str, answer: str, tools: Any, *, name: str = "", stop: tuple[str, ...] = ()) -> ModelReply:
    tokenizer = tokenizer_of(family, name)
    session = Session(renderer_for(tokenizer))
    ids = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return session.add(session.prompt([USER], tools), Completion(ids, [-1.0] * len(ids), "stop", [(0, 0)]), stop)


@pytest.mark.parametrize(
    ("family", "name", "answer"),
    [("qwen25", "", CALL), ("qwen3", "", CALL), ("qwen3", "Qwen/Qwen3-0.6B", CALL), ("llama3", "", JSON_ANSWER)],
)
@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_there_are_no_calls_and_all_is_text(family: str, name: str, answer: str, tools: Any) -> None:
    reply = said(family, answer, tools, name=name)
    assert (reply.tool_calls, reply.flaws, reply.content) == ((), (), answer)


def test_an_answer_in_json_is_no_call_of_a_tool_that_was_not_offered() -> None:
    assert said("llama3", JSON_ANSWER, TOOLS).content == JSON_ANSWER
    assert said("llama3", JSON_ANSWER.replace("Ada", "add"), TOOLS).tool_calls[0].arguments == {"age": 36}


@pytest.mark.parametrize("name", ["", "Qwen/Qwen3-0.6B"])
@pytest.mark.parametrize(
    "answer", ["So: <tool_call>{</tool_call> then", CUT_CALL, "Write <tool_call> to call", f"{CALL}\n{CUT_CALL}"]
)
def test_what_cannot_be_read_as_a_call_stays_text(answer: str, name: str) -> None:
    reply = said("qwen3", answer, TOOLS, name=name)
    assert len(reply.flaws) == 1
    assert len(reply.tool_calls) == answer.startswith(CALL)
    rest = answer.removeprefix(CALL).strip()
    assert reply.content == rest or (name and all(word in reply.content for word in rest.split(" then")[0].split()))


def test_empty_arguments_are_a_mapping_for_templates() -> None:
    values: list[Any] = ["", " ", None, "{}", {}]
    for arguments in values:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        (told,) = for_template({"role": "assistant", "tool_calls": [call]})["tool_calls"]
        assert told["function"]["arguments"] == {}


def asked(**fields: Any) -> bytes:
    return json.dumps({"messages": [USER], "max_tokens": 9, **fields}).encode()


@pytest.mark.parametrize(
    "read", [lambda body: read_request(body, None), lambda body: read_messages_request(body, Sampling())]
)
@pytest.mark.parametrize("value", ["false", "true", 0, 1, {}])
def test_a_flag_is_true_or_false(read: Any, value: Any) -> None:
    with pytest.raises(ChatError, match="stream is true or false"):
        read(asked(stream=value))
    assert [read(asked(stream=one)).stream for one in (True, False)] == [True, False]


def test_a_body_of_too_many_parts_is_refused_before_it_is_read() -> None:
    with pytest.raises(ChatError, match="commas and brackets"):
        read_request(b'{"messages": [' + b"{}," * MAX_PARTS + b"{}]}", None)


def test_fields_that_coding_agents_send_change_nothing() -> None:
    bare = read_messages_request(asked(), Sampling())
    more = {"context_management": {"edits": [{"type": "x"}]}, "output_config": {"effort": "low"}, "mcp_servers": []}
    more |= {"diagnostics": {"previous_message_id": None}, "fallbacks": "default"}
    assert read_messages_request(asked(**more), Sampling()) == bare
    with pytest.raises(ChatError, match="mcp_servers"):
        read_messages_request(asked(mcp_servers=[{"name": "x"}]), Sampling())
    hints = {"service_tier": "flex", "max_tool_calls": 3, "prompt_cache_options": {"ttl": "30m"}}
    of_responses = [json.dumps({"input": "go", **given}).encode() for given in ({}, hints)]
    assert len({str(read_responses_request(body, Sampling())) for body in of_responses}) == 1
    shape = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    drawn = some(read_messages_request(asked(output_config=shape), Sampling()).sampling.structured_outputs)
    assert drawn.json_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("field", "neutral", "other"),
    [
        ("ignore_eos", False, True),
        ("skip_special_tokens", True, False),
        ("min_tokens", 0, 5),
        ("length_penalty", 1.0, 2.0),
        ("stop_token_ids", [], [1]),
        ("bad_words", [], ["a"]),
        ("detokenize", True, False),
        ("return_token_ids", False, True),
        ("add_special_tokens", False, True),
        ("add_generation_prompt", True, False),
    ],
)
def test_what_vllm_does_anyhow_may_be_asked_for(field: str, neutral: Any, other: Any) -> None:
    body = {"messages": [{"role": "user", "content": "go"}]}
    assert read_request(json.dumps({**body, field: neutral}).encode(), None).messages == body["messages"]
    with pytest.raises(ChatError, match=f"{field} .*cannot be had"):
        read_request(json.dumps({**body, field: other}).encode(), None)


def test_hints_of_vllm_are_passed_over() -> None:
    bare = read_request(asked(), None)
    assert read_request(asked(priority=1, request_id="a", cache_salt="b", vllm_xargs={}), None) == bare


def test_reasoning_that_a_client_sends_back_is_told_to_templates() -> None:
    answer = {"role": "assistant", "content": "4", "reasoning": "2 + 2"}
    assert for_template(answer)["reasoning_content"] == "2 + 2"
    assert for_template({**answer, "reasoning_content": "two"})["reasoning_content"] == "two"
    thoughts = [{"type": "thinking", "thinking": "2 + 2", "signature": ""}, {"type": "text", "text": "4"}]
    messages = [USER, {"role": "assistant", "content": thoughts}, USER]
    told = read_messages_request(asked(messages=messages), Sampling()).messages[1]
    assert told == {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}
    item = {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "2 + 2"}]}
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    for following in ({"role": "assistant", "content": ""}, call):
        body = json.dumps({"input": [USER, item, following, USER]}).encode()
        user, answered, last = read_responses_request(body, Sampling()).messages
        assert (answered["content"], answered["reasoning_content"]) == ("", "2 + 2")
        assert user == last == USER


def test_a_number_that_javascript_has_written_again_is_the_same() -> None:
    session, tokenizer = Session(renderer_for(tokenizer_of("qwen25"))), tokenizer_of("qwen25")
    ids = tokenizer.encode(CALL.replace('{"a": 1}', '{"a": [1.0, 2e3, 0.5]}'), add_special_tokens=False)
    said = session.add(session.prompt([USER], TOOLS), Completion(ids, [-1.0] * len(ids), "stop", [(0, 0)])).message
    said["tool_calls"][0]["function"]["arguments"] = '{"a":[1,2000,0.5]}'
    assert session.prompt([USER, said, {"role": "tool", "content": "2"}], TOOLS).after is not None
    said["tool_calls"][0]["function"]["arguments"] = '{"a":[1,2001,0.5]}'
    assert session.prompt([USER, said, {"role": "tool", "content": "2"}], TOOLS).after is None


def test_a_refusal_is_what_was_said() -> None:
    for content in (None, [{"type": "refusal", "refusal": "no"}]):
        told = {"role": "assistant", "content": content, "refusal": "no", "audio": None, "annotations": []}
        assert for_template(told)["content"] == "no"
    assert for_template({"role": "assistant", "content": "yes", "refusal": None})["content"] == "yes"


def test_a_call_of_the_earlier_api_is_no_empty_turn() -> None:
    session = Session(renderer_for(tokenizer_of("qwen25")))
    call = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}}
    result = {"role": "function", "name": "add", "content": "2"}
    prompt = tokenizer_of("qwen25").decode(session.prompt([USER, call, result], TOOLS).token_ids)
    assert CALL in prompt
    assert prompt == tokenizer_of("qwen25").decode(
        session.prompt(
            [
                USER,
                {"role": "assistant", "tool_calls": [{"id": "x", "function": call["function_call"]}]},
                {**result, "role": "tool"},
            ],
            TOOLS,
        ).token_ids
    )


def test_tools_that_a_search_has_found_are_told_by_their_names() -> None:
    found = [{"type": "tool_reference", "tool_name": "lamp"}, {"type": "text", "text": "!"}]
    blocks = [{"type": "tool_result", "tool_use_id": "a", "content": found}]
    (message,) = read_messages_request(asked(messages=[{"role": "user", "content": blocks}]), Sampling()).messages
    assert message["content"] == "lamp!"


def test_a_tool_that_has_failed_is_told_to_have() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "a", "content": "no such file", "is_error": True},
        {"type": "tool_result", "tool_use_id": "b", "content": "a file", "is_error": False},
        {"type": "tool_result", "tool_use_id": "c", "content": None, "is_error": None},
    ]
    messages = read_messages_request(asked(messages=[{"role": "user", "content": blocks}]), Sampling()).messages
    assert [one["content"] for one in messages] == ["error: no such file", "a file", ""]


def test_what_is_null_says_as_much_as_what_is_absent() -> None:
    use = {"type": "tool_use", "id": "a", "name": "add", "input": None}
    tool = {"name": "add", "type": None, "input_schema": None, "description": None}
    messages = [{"role": "assistant", "content": [use]}, USER]
    read = read_messages_request(asked(messages=messages, tools=[tool]), Sampling())
    assert read.messages[0]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert some(read.tools)[0]["function"] == {"name": "add", "parameters": {"type": "object"}}
    null = [{"type": "function", "function": {"name": "add", "parameters": None}}]
    tokenizer = tokenizer_of("qwen25")
    required = read_request(asked(tools=null, tool_choice="required"), None).drawn_after([1], tokenizer)
    assert '"json_schema": {"type": "object"}' in str(some(required.structured_outputs).structural_tag)


def test_the_system_may_speak_among_anthropics_messages() -> None:
    messages = [USER, {"role": "assistant", "content": "what?"}, {"role": "system", "content": "Be brief."}]
    assert read_messages_request(asked(messages=messages), Sampling()).messages == messages


@pytest.mark.parametrize(
    "tool", [{"type": "web_search"}, {"type": "function", "function": None}, {"name": "add", "parameters": {}}]
)
def test_a_tool_that_is_no_function_is_refused_by_its_place(tool: Any) -> None:
    with pytest.raises(ChatError, match=r"tools\[1\]") as refused:
        read_request(asked(tools=[*TOOLS, tool]), None)
    assert refused.value.param == "tools[1]"


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        ("one END two", ("stop_sequence", "END")),
        ("one STOP two END", ("stop_sequence", "STOP")),
        ("one two", ("end_turn", None)),
        (CALL, ("tool_use", None)),
    ],
)
def test_what_has_ended_an_answer_is_told(answer: str, ended: tuple[str, str | None]) -> None:
    reply = said("qwen25", answer, TOOLS, stop=("END", "STOP"))
    shape = MessageShape("m", 0, "policy", 1, read_messages_request(asked(), Sampling()))
    body = shape.body([(reply, None)])
    assert (body["stop_reason"], body["stop_sequence"]) == ended
    (delta,) = [one["delta"] for one in shape.last(0, reply, "", None) if one["type"] == "message_delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == ended
