"""Tasks typed by hand: JSON, without the schema's name and version if one likes."""

import json
from typing import Any

import pytest
from hypothesis import given
from record_strategies import tasks

from schemas import ExperienceGroup, Task
from schemas.codec import DecodeError, decode, encode
from schemas.event import ExplorerLeft


def line(**fields: Any) -> bytes:
    return json.dumps({"task_id": "t1", "workflow": "math", "prompt": "1+1"} | fields).encode()


def test_the_shortest_task() -> None:
    task = decode(b'{"task_id":"t1","workflow":"math","prompt":"1+1"}', Task)
    assert task == Task(task_id="t1", workflow="math", prompt="1+1")


@given(tasks)
def test_json_and_msgpack_mean_the_same(task: Task) -> None:
    wire = task.to_wire()
    assert decode(json.dumps(wire).encode(), Task) == decode(encode(task), Task) == task
    del wire["schema"], wire["schema_version"]
    assert decode(json.dumps(wire, indent=1).encode(), Task) == task


def test_space_around_is_fine() -> None:
    assert decode(b" \r\n\t" + line() + b"\n", Task).task_id == "t1"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (line(task_id=7), "wrong_type"),
        (line(repeat_times="8"), "wrong_type"),
        (line(schema_version=2), "unsupported_version"),
        (line(schema="event.explorer_left"), "unexpected_schema"),
        (line(schema="nope"), "unknown_schema"),
        (line(data={"a": 2**70}), "bad_value"),
        (line(sampling={"seed": 2**63}), "bad_value"),
        (line(data={"a": float("inf")}), "not_msgpack_or_json"),
        (line(data=[]), "wrong_type"),
        (line() + line(), "not_msgpack_or_json"),
        (b'{"task_id":"\\ud800"}', "not_msgpack_or_json"),
        (b'{"task_id":"\xff"}', "not_msgpack_or_json"),
        (b'{"a":' * 5000, "not_msgpack_or_json"),
        (b'{"workflow":"math","prompt":"1+1"}', "missing_field"),
        (b" 7", "not_msgpack_or_json"),
    ],
)
def test_reasons(value: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(value, Task)
    assert caught.value.reason == reason


def test_nothing_else_may_be_json() -> None:
    value = b'{"schema":"event.explorer_left","schema_version":1,"explorer":"e","incarnation":"i"}'
    with pytest.raises(DecodeError, match="unexpected_json"):
        decode(value, ExplorerLeft, ExperienceGroup)
    with pytest.raises(DecodeError, match="unexpected_schema"):
        decode(value, ExplorerLeft, Task)
