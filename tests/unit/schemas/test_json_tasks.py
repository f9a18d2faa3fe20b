import json
from typing import Any

import msgpack
import pytest
from hypothesis import given

from schemas import Dispatch, ExperienceGroup, Task
from schemas.codec import DecodeError, decode, encode
from schemas.event import ExplorerLeft
from schemas.fields.free_form import MAX_CONTAINERS, MAX_ITEMS, MAX_VALUES
from tests.unit.schemas.record_strategies import tasks


def line(**fields: Any) -> bytes:
    return json.dumps({"task_id": "t1", "workflow": "math", "prompt": "1+1"} | fields).encode()


def test_the_shortest_task_and_space_around_it() -> None:
    for around in ("", " \r\n\t"):
        task = decode(f'{around}{{"task_id":"t1","workflow":"math","prompt":"1+1"}}{around}'.encode(), Task)
        assert task == Task(task_id="t1", workflow="math", prompt="1+1")


@given(tasks)
def test_json_and_msgpack_mean_the_same(task: Task) -> None:
    wire = msgpack.unpackb(encode(task))
    assert decode(json.dumps(wire).encode(), Task) == decode(encode(task), Task) == task
    del wire["schema"], wire["schema_version"]
    assert decode(json.dumps(wire, indent=1).encode(), Task) == task


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (line(repeat_times="8"), "wrong_type"),
        (line(schema="event.explorer_left"), "unexpected_schema"),
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


@pytest.mark.parametrize(
    "fields",
    [
        {"data": {"a": [0] * (MAX_ITEMS + 1)}},
        {"data": {"a": [[[]] * (MAX_ITEMS // 2)] * 5}},
        {"sampling": {"stop": [""] * (MAX_ITEMS + 1)}},
        {"messages": [{"role": "user", "content": ""}] * (MAX_ITEMS + 1)},
    ],
    ids=["entries", "containers", "stop", "messages"],
)
def test_a_task_that_no_reader_of_its_dispatch_would_take_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(line(**fields), Task)
    assert caught.value.reason in ("too_large", "bad_value")


def test_the_largest_task_can_be_sent_on() -> None:
    half = MAX_CONTAINERS // 2 - 7
    data = {"a": [[[]] * (half // 4)] * 4, "b": [0] * (MAX_VALUES // 2 - half - 20)}
    task = decode(line(data=data), Task)
    names = {"explorer": "e", "incarnation": "i", "batch_id": "b", "batch_type": "train"}
    dispatch = Dispatch(**names, task=task, attempt=1, repeat_times=1, timeout_s=1.0)
    assert decode(encode(dispatch), Dispatch) == dispatch
