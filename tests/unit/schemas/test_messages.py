import json
import time
import tracemalloc
from typing import Any

import msgpack
import pytest

from schemas import Message, Sampling, StructuredOutputs, Task, Tool
from schemas.codec import DecodeError, decode, encode
from schemas.message import MAX_MESSAGE_ITEMS, MAX_MESSAGES, MAX_TOOLS, in_one_shape
from schemas.sampling import MAX_WORDS

CALL = {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": '{"query": "Kafka"}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Who wrote it?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "I look it up."},
    {"role": "tool", "content": "Jay Kreps", "tool_call_id": "call-1", "name": "search"},
]
SEARCH = {"name": "search", "description": "Look it up.", "parameters": {"type": "object", "properties": {}}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": SEARCH}]
TASK: dict[str, Any] = {"task_id": "t", "workflow": "agent", "messages": CONVERSATION, "tools": TOOLS}


def test_a_conversation_with_tools_is_the_same_after_json_and_msgpack() -> None:
    task = decode(json.dumps(TASK).encode(), Task)
    again: Any = decode(encode(task), Task)
    assert again == task
    # What is null is left out on the wire, and null again for a reader.
    assert [one.model_dump(exclude_none=True) for one in again.messages] == [
        {name: value for name, value in message.items() if value is not None} for message in CONVERSATION
    ]
    assert again.tools[0].model_dump(exclude_none=True) == TOOLS[0]
    assert Tool(**TOOLS[0]) == again.tools[0]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user"}, "bad_value"),
        ({"role": "user", "content": 7}, "wrong_type"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "wrong_type"),
        ({"role": "assistant", "tool_calls": []}, "bad_value"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, "missing_field"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "code"}]}, "bad_value"),
        ({"role": "assistant", "tool_calls": [CALL] * (MAX_MESSAGE_ITEMS + 1)}, "bad_value"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "bad_value"),
    ],
)
def test_what_is_no_message_is_refused(message: dict[str, Any], reason: str) -> None:
    for value in (json.dumps({**TASK, "messages": [message]}).encode(), _msgpack(messages=[message])):
        with pytest.raises(DecodeError) as caught:
            decode(value, Task)
        assert caught.value.reason == reason


def test_calls_and_parts_of_all_messages_together_are_bounded_before_they_are_built() -> None:
    many = [{"role": "assistant", "tool_calls": [CALL]}] * (MAX_MESSAGE_ITEMS + 1)
    with pytest.raises(DecodeError, match=f"{MAX_MESSAGE_ITEMS + 1} tool calls and parts of content"):
        decode(_msgpack(messages=many), Task)
    with pytest.raises(DecodeError, match="tools"):
        decode(_msgpack(tools=TOOLS * (MAX_TOOLS + 1)), Task)


EVERY: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 0.5,
    "top_k": 4,
    "min_p": 0.1,
    "max_tokens": 8,
    "seed": 3,
    "stop": ["."],
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.5,
    "stop_token_ids": [7],
    "ignore_eos": True,
    "min_tokens": 2,
    "bad_words": ["no"],
    "logit_bias": {"5": 2.0},
    "allowed_token_ids": [1, 2, 3],
    "structured_outputs": {"regex": "[a-z]+"},
    "skip_special_tokens": False,
    "thinking_token_budget": 16,
}


def test_every_option_of_the_engine_is_carried() -> None:
    assert EVERY.keys() == Sampling.model_fields.keys()
    task: Any = decode(_msgpack(sampling=EVERY), Task)
    assert decode(encode(task), Task).sampling == task.sampling
    assert task.sampling.model_dump(exclude_none=True) == EVERY


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_p": 1.5},
        {"presence_penalty": 2.5},
        {"frequency_penalty": float("nan")},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("inf")},
        {"min_tokens": -1},
        {"stop_token_ids": [-1]},
        {"bad_words": [""]},
        {"logit_bias": {"five": 1.0}},
        {"logit_bias": {"5": 101.0}},
        {"logit_bias": {str(token): 0.0 for token in range(MAX_WORDS + 1)}},
        {"allowed_token_ids": []},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "json_object": True}},
        {"thinking_token_budget": -1},
    ],
    ids=str,
)
def test_an_option_out_of_its_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(_msgpack(sampling=wrong), Task)
    assert caught.value.reason == "bad_value"


def test_what_alters_the_distribution_is_told() -> None:
    cut = Sampling(temperature=0.5, top_p=0.5, top_k=4, min_p=0.1, stop=["."], stop_token_ids=[1], ignore_eos=True)
    assert cut.altered_by == ()
    none = Sampling(presence_penalty=0.0, repetition_penalty=1.0, min_tokens=0, bad_words=[], logit_bias={})
    assert none.altered_by == ()
    altered = Sampling(repetition_penalty=1.1, min_tokens=4, structured_outputs=StructuredOutputs(json_object=True))
    assert altered.altered_by == ("repetition_penalty", "min_tokens", "structured_outputs")


def test_the_largest_conversation_is_read_in_time_and_takes_no_more_memory_than_it_may() -> None:
    call = {"id": "c", "function": {"name": "f"}}
    messages: list[dict[str, Any]] = [{"role": "a", "content": ""}] * (MAX_MESSAGES - MAX_MESSAGE_ITEMS)
    messages += [{"role": "a", "tool_calls": [call]}] * MAX_MESSAGE_ITEMS
    value = _msgpack(messages=messages, tools=TOOLS * MAX_TOOLS)
    decode(value, Task)
    fastest = min(_seconds(value) for _ in range(5))
    assert fastest < 0.1
    tracemalloc.start()
    task: Any = decode(value, Task)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(task.messages) == MAX_MESSAGES
    assert peak <= max(5 << 20, 10 * len(value))


def test_a_message_that_is_made_in_a_program_is_held_to_the_same() -> None:
    with pytest.raises(ValueError, match="a message needs content"):
        Message(role="user")


def _msgpack(**changes: Any) -> bytes:
    return bytes(msgpack.packb({"schema": "task", "schema_version": 1, **TASK, **changes}))


def _seconds(value: bytes) -> float:
    """CPU time of this thread: what others do on the machine says nothing."""
    began = time.thread_time()
    decode(value, Task)
    return time.thread_time() - began


@pytest.mark.parametrize(
    "fields",
    [
        *({"tools": text} for text in ("[" * 100_000, "{", '{"a":' * 50_000, "", "\ud800")),
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"at": {1, 2}}}]}]},
    ],
)
def test_tools_and_calls_that_cannot_be_read_are_an_error_of_a_value(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting|cannot be written"):
        in_one_shape(fields)
