"""A model that has lost its way writes anything: reading it costs its length, and ends in flaws, never in an error."""

import json
import time

import pytest

from trinity_bus.chat.formats import (
    MAX_CALLS,
    MAX_FLAWS,
    MAX_SHOWN,
    Format,
    read_hermes,
    read_llama,
    read_mistral,
    read_xml,
)
from trinity_bus.chat.messages import Digests

DEEP = "[" * 100_000
READERS = {"hermes": read_hermes, "llama": read_llama, "mistral": read_mistral, "xml": read_xml}
TURNS = [
    '<tool_call>{"name": "x", "arguments": "' + DEEP + '"}</tool_call>',
    '<tool_call>{"name": "x", "arguments": ' + DEEP + "}</tool_call>",
    "<tool_call><function=a><parameter=a>" + DEEP + "</parameter></function></tool_call>",
    "<tool_call><function=a>" + " " * 100_000 + "</function></tool_call>",
    "<tool_call><function=a>" + "<parameter=a>" * 20_000 + "</function></tool_call>",
    "<tool_call><function=" + "a" * 100_000 + "</function></tool_call>",
    "<tool_call>" * 50_000,
    "<tool_call></tool_call>" * 50_000,
    "[TOOL_CALLS] [" + "1, " * 50_000 + "1]",
    "[TOOL_CALLS] " + DEEP,
    '{"a": 1};' * 50_000,
    '<|python_tag|>{"a": "' + DEEP + '"}',
    '<|python_tag|>{"name": "x", "parameters": "' + DEEP + '"}',
    "<think>" * 50_000,
]


@pytest.mark.parametrize("turn", TURNS, ids=range(len(TURNS)))
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_reading_any_turn_costs_its_length(reader: Format, turn: str) -> None:
    began = time.process_time()
    read = reader(turn)
    assert time.process_time() - began < 1
    assert len(read.flaws) <= MAX_FLAWS
    assert sum(map(len, read.flaws)) < MAX_FLAWS * (2 * MAX_SHOWN + 200)
    assert len(read.calls) <= MAX_CALLS
    for call in read.calls:
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        Digests(None).add({"role": "assistant", "content": "", "tool_calls": [{"function": function}]})


def test_a_history_with_arguments_that_are_nested_too_deep_is_known_by_their_text() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": deep}}]}
        for deep in (DEEP, DEEP + "[")
    ]
    assert len({Digests(None).add(message) for message in messages}) == 2
