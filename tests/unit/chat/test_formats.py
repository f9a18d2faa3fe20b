import time
from typing import Any

import pytest

from trinity_bus.chat.formats import (
    Format,
    ParsedCall,
    Read,
    format_of,
    read_hermes,
    read_llama,
    read_mistral,
    read_plain,
    read_xml,
    split_reasoning,
)

ADD = ParsedCall("add", {"a": 1})


@pytest.mark.parametrize(
    ("reader", "text", "content", "calls"),
    [
        pytest.param(read_hermes, "no call", "no call", [], id="hermes, none"),
        pytest.param(
            read_hermes, 'Yes.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "Yes.", [ADD],
            id="hermes, one",
        ),
        pytest.param(
            read_hermes,
            '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n'
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
            "", [ADD, ADD], id="hermes, two, one with arguments as text",
        ),
        pytest.param(
            read_xml,
            'So.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>',
            "So.", [ADD], id="xml",
        ),
        pytest.param(read_llama, '{"name": "add", "parameters": {"a": 1}}', "", [ADD], id="llama"),
        pytest.param(
            read_llama,
            'x <|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 1}}',
            "x", [ADD, ADD], id="llama, several",
        ),
        pytest.param(read_llama, '{"result": 4}', '{"result": 4}', [], id="llama, an answer in JSON"),
        pytest.param(read_llama, "{so it goes", "{so it goes", [], id="llama, an answer with a brace"),
        pytest.param(
            read_mistral, 'So.[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', "So.", [ADD], id="mistral"
        ),
        pytest.param(
            read_mistral, 'So.[TOOL_CALLS]add[CALL_ID]1[ARGS]{"a": 1}[TOOL_CALLS]add{"a": 1}', "So.", [ADD, ADD],
            id="mistral, later",
        ),
        pytest.param(
            read_hermes, '<tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>', "", [ADD],
            id="hermes, parameters",
        ),
        pytest.param(
            read_hermes, '<tool_call>{"name": "add", "arguments": null}</tool_call>', "", [ParsedCall("add", {})],
            id="hermes, null",
        ),
        pytest.param(
            read_xml, 'So.\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>', "So.", [ADD],
            id="xml, without the tag before",
        ),
        pytest.param(
            read_xml, 'So.<function=add><parameter=a>1</parameter></function>\n<function=add></function> End',
            "So.\n End", [ADD, ParsedCall("add", {})], id="xml, without tags",
        ),
        pytest.param(
            read_hermes,
            'So. <tool_call> {"name": "add", "arguments": {"a": "</tool_call> <tool_call>"}}</tool_call>\n'
            '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
            "So.", [ParsedCall("add", {"a": "</tool_call> <tool_call>"}), ADD], id="hermes, marks in an argument",
        ),
        pytest.param(read_plain, "<tool_call>", "<tool_call>", [], id="plain"),
    ],
)  # fmt: skip
def test_calls_are_read(reader: Format, text: str, content: str, calls: list[ParsedCall]) -> None:
    read = reader(text)
    assert (read.content, read.calls, read.flaws) == (content, calls, [])


@pytest.mark.parametrize(
    ("reader", "text", "why"),
    [
        (read_hermes, "<tool_call>{so</tool_call>", "it is no JSON"),
        (read_hermes, '<tool_call>{"name": "add"', "it is not ended"),
        (read_hermes, "<tool_call>[1]</tool_call>", "it is no JSON object"),
        (read_hermes, '<tool_call>{"arguments": {}}</tool_call>', "it names no tool"),
        (read_hermes, '<tool_call>{"name": "add", "arguments": "{"}</tool_call>', "its arguments are no JSON"),
        (read_hermes, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "its arguments are no JSON object"),
        (read_hermes, "<tool_call>" + "[" * 100_000 + "</tool_call>", "it is no JSON"),
        (read_hermes, '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "a number that JSON has not"),
        (read_xml, "<tool_call><function=add>", "it is not ended"),
        (read_xml, "<tool_call>add</tool_call>", "it is no <function"),
        (read_xml, "<tool_call><function=add>1</function></tool_call>", "it has something beside"),
        (read_llama, "<|python_tag|>{so", "it is no JSON"),
        (read_mistral, "[TOOL_CALLS] so", "it is no JSON"),
        (read_mistral, "[TOOL_CALLS] [1]", "it is no JSON object"),
    ],
)
def test_what_cannot_be_read_is_a_flaw_in_words(reader: Format, text: str, why: str) -> None:
    read = reader(text)
    assert read.calls == []
    (flaw,) = read.flaws
    assert flaw.startswith("this tool call could not be read")
    assert why in flaw
    assert len(flaw) < 500


def test_arguments_that_can_be_read_and_not_be_written_again_are_a_flaw(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(*_given: object, **_options: object) -> str:
        raise RecursionError

    # How deep the parser and the writer go is the interpreter's.
    monkeypatch.setattr("trinity_bus.chat.formats.json.dumps", too_deep)
    read = Read("")
    read.add("add", {"a": 1}, "so")
    assert read.calls == []
    assert "nested too deep" in read.flaws[0]


def test_what_a_tool_says_to_be_a_string_is_one_whatever_it_looks_like() -> None:
    shapes = {
        "a": {"type": "string"},
        "b": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "d": {},
        "c": {"type": "integer"},
    }
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": shapes}}},
        {"name": "g", "parameters": []},
    ]
    shapes["e"] = {"type": ["string", "null"]}
    values = "".join(
        f"<parameter={name}>\n{text}\n</parameter>"
        for name, text in zip("abcde", ["007", "null", "7", "[1]", "5"], strict=True)
    )
    (call,) = read_xml(f"<tool_call><function=f>{values}</function></tool_call>", tools).calls
    assert call.arguments == {"a": "007", "b": None, "c": 7, "d": [1], "e": "5"}
    (call,) = read_xml("<tool_call><function=f><parameter=a>[1]</parameter></function></tool_call>", tools).calls
    assert call.arguments == {"a": "[1]"}


def test_a_call_that_is_broken_within_a_text_takes_no_other_along() -> None:
    read = read_hermes('<tool_call>{"name": "add", "a": "so</tool_call><tool_call>{"name": "add"}</tool_call>')
    assert read.calls == [ParsedCall("add", {})]
    assert "it is no JSON" in read.flaws[0]
    assert read.content == '<tool_call>{"name": "add", "a": "so</tool_call>'
    (call,) = read_hermes('<tool_call>"</tool_call><tool_call>{"name": "add"}</tool_call>').calls
    assert call.name == "add"


def test_too_many_calls_are_a_flaw() -> None:
    read = read_hermes('<tool_call>{"name": "add", "arguments": {}}</tool_call>' * 129)
    assert len(read.calls) == 128
    assert "more than 128 calls" in read.flaws[0]


def test_a_thousand_broken_calls_cost_no_more_each_than_a_few() -> None:
    began = time.thread_time()
    read = read_hermes("<tool_call>{\n" * 100_000)
    assert time.thread_time() - began < 5
    assert (read.calls, len(read.flaws)) == ([], 8)


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "rest"),
    [
        ("<think>\nso\n</think>\n\nyes", False, "so", "yes"),
        ("so\n</think>\n\nyes", True, "so", "yes"),
        ("so", True, "so", ""),
        ("<think>\nso</think>yes", True, "so", "yes"),
        ("<think>so", False, "so", ""),
        ("yes <think>", False, None, "yes <think>"),
    ],
)
def test_reasoning_is_split_off(text: str, opened: bool, reasoning: str | None, rest: str) -> None:
    assert split_reasoning(text, opened=opened) == (reasoning, rest)


def test_the_format_is_seen_in_the_template() -> None:
    assert format_of("... <tool_call>\n<function=name> ...") is read_xml
    assert format_of("... <tool_call> ...") is read_hermes
    assert format_of("... ipython ...") is read_llama
    assert format_of("... [TOOL_CALLS] ...") is read_mistral
    assert format_of("...") is read_plain
