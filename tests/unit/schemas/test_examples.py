from typing import Any

import msgspec
import pytest

from schemas import Demonstration, Preference
from schemas.codec import DecodeError, decode


def line(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


def test_examples_are_read_as_json_without_their_names() -> None:
    shown = decode(line(example_id="d-1", prompt="6 * 7", response="42"), Demonstration)
    assert (shown.response, shown.weight) == ("42", 1.0)
    said = [{"role": "user", "content": "6 * 7"}, {"role": "assistant", "content": "42"}]
    assert decode(line(example_id="d-2", messages=said), Demonstration).response is None
    preferred = decode(line(example_id="p-1", prompt="6 * 7", chosen="42", rejected="41", weight=2), Preference)
    assert (preferred.chosen, preferred.rejected, preferred.weight) == ("42", "41", 2)


@pytest.mark.parametrize(
    ("cls", "fields", "detail"),
    [
        (Demonstration, {"response": "42"}, "exactly one of prompt and messages"),
        (Demonstration, {"prompt": "?"}, "needs a response"),
        (Demonstration, {"messages": [{"role": "user", "content": "?"}]}, "of which the last is an assistant's"),
        (
            Demonstration,
            {"prompt": "?", "response": "42", "tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools are for messages",
        ),
        (Demonstration, {"prompt": "?", "response": ""}, "response"),
        (Demonstration, {"prompt": "?", "response": "42", "weight": -1}, "weight"),
        (
            Demonstration,
            {"prompt": "?", "messages": [{"role": "user", "content": "?"}], "response": "42"},
            "exactly one",
        ),
        (Preference, {"prompt": "?", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same"),
    ],
)
def test_what_nobody_can_learn_from_is_refused(cls: type, fields: dict[str, Any], detail: str) -> None:
    with pytest.raises(DecodeError, match=detail):
        decode(line(example_id="e-1", **fields), cls)
