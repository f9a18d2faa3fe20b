import json
import re
from typing import Any

import pytest

from schemas import Sampling, SubmitBatch, Task
from schemas.codec import DecodeError, decode, encode
from schemas.errors import RecordError, TrinityError


def given(**fields: object) -> Task:
    return Task(**{"workflow": "math", "prompt": "1 + 1 =", **fields})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"repeat_time": True}, "repeat_time; did you mean repeat_times?"),
        ({"is_eval": True}, "is_eval; did you mean batch_type?"),
        ({"rollout_args": True}, "rollout_args; did you mean sampling?"),
        ({"raw_task": True}, "raw_task; did you mean data?"),
        ({"awnser": True}, "awnser; did you mean answer?"),
        ({"zzz": 1}, "zzz; there are task_id, workflow, prompt, "),
        # What lies in a record is looked at too.
        ({"sampling": {"max_token": 5}}, "sampling.max_token; did you mean max_tokens?"),
        ({"prompt": None, "messages": [{"roll": "user", "role": "user", "content": "a"}]}, "messages.0.roll; did you"),
    ],
)
def test_a_field_that_does_not_exist_is_refused_with_the_one_that_was_meant(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(RecordError, match=f"^task: there is no field {re.escape(told)}"):
        given(**fields)


def test_any_record_is() -> None:
    with pytest.raises(RecordError, match="did you mean min_wait_num"):
        SubmitBatch(client="c", command_id="c/1", batch_id="b", min_wait=3)  # type: ignore[call-arg]
    with pytest.raises(RecordError, match="did you mean temperature"):
        Sampling(temperatur=1)  # type: ignore[call-arg]


def test_a_wrong_value_is_one_line_too_and_what_people_catch() -> None:
    with pytest.raises(
        ValueError, match=r"^task: repeat_times = 0: Input should be greater than or equal to 1$"
    ) as told:
        given(repeat_times=0)
    assert isinstance(told.value, TrinityError)
    with pytest.raises(RecordError, match="at least one of prompt, messages or data"):
        Task(workflow="math")


def test_a_task_needs_an_id_where_it_is_read_and_none_where_it_is_made() -> None:
    first, second = given(), given()
    assert first.task_id != second.task_id
    assert decode(encode(first), Task) == first
    assert given(task_id="mine").task_id == "mine"
    with pytest.raises(DecodeError, match="missing_field: task: task_id is missing"):
        decode(b'{"workflow": "math", "prompt": "1 + 1 ="}', Task)


def test_fields_that_a_reader_does_not_know_are_passed_over() -> None:
    fields = given(sampling=Sampling(max_tokens=5)).model_dump(exclude_none=True)
    known = decode(json.dumps(fields).encode(), Task)
    fields["sampling"]["new"] = fields["new"] = 1
    assert decode(json.dumps(fields).encode(), Task) == known
