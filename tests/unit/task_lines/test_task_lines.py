import codecs
import json
from typing import Any

import pytest

from schemas import Demonstration, Preference, Task
from schemas.codec import encode
from workers.task_lines import BadLine, parse

GOOD = b'{"task_id": "t1", "workflow": "math", "prompt": "1 + 1 =", "answer": "2"}\n'
WITH_SCHEMA = b'{"schema": "task", "schema_version": 1, "task_id": "t2", "workflow": "math", "prompt": "1 + 1 ="}\n'


def test_lines_become_tasks_without_a_mark_of_byte_order() -> None:
    found = list(parse([GOOD, b"\n", b"  \n", WITH_SCHEMA], Task))
    assert [(item[0], item[1].task_id) for item in found if not isinstance(item, BadLine)] == [(1, "t1"), (4, "t2")]
    assert len(found) == 2
    assert [item for item in parse([codecs.BOM_UTF8 + GOOD], Task) if isinstance(item, BadLine)] == []
    assert list(parse([codecs.BOM_UTF8], Task)) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello\n", "not_msgpack_or_json"),
        (b"[1]\n", "not_msgpack_or_json"),
        (b'{"task_id": "t", "workflow": "math"}\n', "prompt"),
        (b'{"task_id": "no blanks allowed", "workflow": "math", "prompt": ""}\n', "task_id"),
        (b'{"schema": "task", "schema_version": 9, "task_id": "t", "workflow": "math", "prompt": ""}\n', "9"),
        (b'{"task_id": "t\xff", "workflow": "math", "prompt": ""}\n', "not_msgpack_or_json"),
        (GOOD, "duplicate_id: task_id 't1' is that of line 1 too"),
        (b'{"task_id": "t", "workflow": "math", "prompt": "a", "prompt": "b"}\n', "the name 'prompt' is there twice"),
        (encode(Task(task_id="t", workflow="math", prompt="a")), "bad_line"),
    ],
)
def test_a_bad_line_is_told_by_its_number(line: bytes, reason: str) -> None:
    (bad,) = [item for item in parse([GOOD, line, WITH_SCHEMA], Task) if isinstance(item, BadLine)]
    assert bad.number == 2
    assert reason in bad.reason


def test_examples_without_an_id_get_that_of_their_line() -> None:
    lines = [
        b'{"prompt": "6 * 7", "response": "42"}',
        b'{"example_id": "mine", "prompt": "6 * 7", "response": "42"}',
        b'{"prompt": "6 * 7", "answer": "42"}',
        b"nonsense",
    ]
    found = list(parse(lines, Demonstration, name="shown"))
    assert [item[1].example_id for item in found if not isinstance(item, BadLine)] == ["shown:1", "mine"]
    assert [item.number for item in found if isinstance(item, BadLine)] == [3, 4]


def test_messages_are_taken_as_training_sets_have_them() -> None:
    lamp = {"name": "lamp", "arguments": {"on": True, "city": None}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "light", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": lamp}, lamp]},
        {"role": "tool", "name": "lamp", "content": "on"},
        {"role": "tool", "content": "still on"},
        {"role": "assistant", "content": "done", "tool_calls": []},
    ]
    tools = json.dumps([{"name": "lamp", "description": None, "parameters": {"type": "object", "properties": {}}}])
    line = json.dumps({"example_id": "a", "messages": messages, "tools": tools}).encode()
    (found,) = parse([line], Demonstration)
    assert not isinstance(found, BadLine)
    example = found[1]
    assert example.messages is not None
    calls = example.messages[1].tool_calls or []
    assert [(one.id, json.loads(one.function.arguments)) for one in calls] == [
        ("call00000", {"on": True}),
        ("call00001", {"on": True}),
    ]
    assert [one.tool_call_id for one in example.messages[2:4]] == ["call00000", "call00001"]
    empty = {"name": "", "tool_call_id": "", "refusal": None, "audio": None}
    parts: dict[str, Any] = {"content": [{"type": "text", "text": "light", "image_url": None}]}
    messages[0] |= parts
    line = json.dumps(
        {"example_id": "a", "messages": messages, "tools": tools, "weight": None, "source": None}
    ).encode()
    (found,) = parse([line], Demonstration)
    messages = [{**empty, **one, "tool_calls": json.dumps(one.get("tool_calls"))} for one in messages]
    (texts,) = parse(
        [json.dumps({"example_id": "a", "messages": json.dumps(messages), "tools": tools}).encode()], Demonstration
    )
    assert texts == found
    assert example.tools is not None
    assert example.tools[0].function.name == "lamp"
    # What has that shape already stays as it is.
    again = example.model_dump_json(exclude_none=True).encode()
    assert list(parse([again], Demonstration)) == [(1, example)]
    (bad,) = parse([b'{"example_id": "a", "tools": "{"}'], Demonstration)
    assert isinstance(bad, BadLine)
    assert "cannot be read" in bad.reason


ASKED = {"role": "user", "content": "6 * 7"}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def told(line: dict[str, Any], kind: type[Demonstration] | type[Preference]) -> Any:
    """Return the fields of the one record, or why there is none."""
    (found,) = parse([json.dumps(line).encode()], kind, name="a")
    if isinstance(found, BadLine):
        return found.reason
    return found[1].model_dump(exclude_none=True, exclude_defaults=True, exclude={"example_id"})


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ({"prompt": "6 * 7 =", "completion": " 42"}, {"prompt": "6 * 7 =", "response": " 42"}),
        ({"prompt": [ASKED], "completion": [said("42")]}, {"messages": [ASKED], "response": "42"}),
        ({"prompt": [ASKED], "completion": [said("42", name=None)]}, {"messages": [ASKED], "response": "42"}),
        ({"prompt": [ASKED], "completion": "42"}, {"messages": [ASKED], "response": "42"}),
        (
            {"prompt": [ASKED], "completion": [said("42"), ASKED, said("43")]},
            {"messages": [ASKED, said("42"), ASKED, said("43")]},
        ),
        (
            {"prompt": [ASKED, said("41"), ASKED], "completion": [said("42")]},
            {"messages": [ASKED, said("41"), ASKED], "response": "42"},
        ),
        ({"messages": [ASKED, said("42")]}, {"messages": [ASKED, said("42")]}),
    ],
)
def test_demonstrations_may_be_as_trl_has_them(line: dict[str, Any], fields: dict[str, Any]) -> None:
    assert told(line, Demonstration) == fields


BOTH = {"messages": [ASKED], "chosen": "42", "rejected": "41"}


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ({"prompt": "6 * 7", "chosen": "42", "rejected": "41"}, {"prompt": "6 * 7", "chosen": "42", "rejected": "41"}),
        ({"prompt": [ASKED], "chosen": [said("42")], "rejected": [said("41")]}, BOTH),
        ({"chosen": [ASKED, said("42")], "rejected": [ASKED, said("41")]}, BOTH),
        ({"prompt": "6 * 7", "chosen": [ASKED, said("42")], "rejected": [ASKED, said("41")]}, BOTH),
    ],
)
def test_preferences_likewise(line: dict[str, Any], fields: dict[str, Any]) -> None:
    assert told(line, Preference) == fields


@pytest.mark.parametrize(
    ("line", "kind", "reason"),
    [
        (
            {"prompt": [ASKED, said("41")], "completion": [said("42"), ASKED, said("43")]},
            Demonstration,
            "completion is not one message of an assistant, with text alone",
        ),
        ({"prompt": [ASKED], "completion": []}, Demonstration, "completion is not one message"),
        ({"prompt": [ASKED], "completion": [{"x": 1}, 2]}, Demonstration, "messages"),
        ({"prompt": [1, "a"], "completion": "42"}, Demonstration, "messages"),
        ({"prompt": "6 * 7", "completion": [said("42")]}, Demonstration, "response"),
        ({"prompt": "6 * 7", "completion": "42", "response": "41"}, Demonstration, "completion and response"),
        ({"chosen": [ASKED, said("42")], "rejected": [ASKED, said("42")]}, Preference, "chosen is not one message"),
        ({"chosen": [said("42")], "rejected": [said("41")]}, Preference, "messages"),
        ({"chosen": [ASKED, said("42"), ASKED], "rejected": [ASKED, said("41")]}, Preference, "chosen is not one"),
        (
            {"prompt": [ASKED], "chosen": [said("42", tool_calls=[{}])], "rejected": [said("1")]},
            Preference,
            "chosen is",
        ),
        ({"chosen": "6 * 7 = 42", "rejected": "6 * 7 = 41"}, Preference, "exactly one of prompt and messages"),
    ],
)
def test_what_is_no_example_of_theirs_is_told(line: dict[str, Any], kind: Any, reason: str) -> None:
    assert reason in told(line, kind)


@pytest.mark.parametrize("told", [{"weight": 0}, {"weight": 0.5}, {"train": False}])
def test_a_turn_of_sharegpts_that_is_not_to_be_learned_from_is_refused_and_not_learned_from(told: Any) -> None:
    asked, said = {"from": "human", "value": "2 + 2 =", "weight": 0}, {"from": "gpt", "value": "4"}
    for turn in (said, {**said, "weight": 1}, {**said, "train": True, "weight": None}):
        (good,) = parse([json.dumps({"messages": [asked, turn]}).encode()], Demonstration, name="a")
        assert not isinstance(good, BadLine)
    (bad,) = parse([json.dumps({"messages": [asked, {**said, **told}]}).encode()], Demonstration, name="a")
    assert isinstance(bad, BadLine)
    assert f"there is no field messages.1.{next(iter(told))}" in bad.reason
