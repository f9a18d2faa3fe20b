from typing import Any

from schemas.topic import Topic
from schemas.topics import DEAD_LETTERS, TASKS
from tests.support.fakes.received import received as at_place
from trinity_bus.bus import Received, dead_letter
from workers.cli.topics import fields_of


def received(raw: bytes, topic: Topic = TASKS, **changes: Any) -> Received[Any]:
    given = {"partition": 3, "key": "t1", "raw_key": b"t1", "timestamp_ms": 1_700_000_000_123} | changes
    return at_place(raw, topic, 41, raw=raw, **given)


def test_a_dead_letter_tells_when_why_and_where_from() -> None:
    key, value, headers = dead_letter(
        received(b"{oops"), "not_msgpack_or_json", "expected a quote", DEAD_LETTERS.max_message_bytes
    )
    assert key is not None
    letter = fields_of(received(value or b"", topic=DEAD_LETTERS, key=key.decode(), headers=headers))
    assert letter == {
        "time": "2023-11-14T22:13:20.123+00:00",
        "reason": "not_msgpack_or_json",
        "detail": "expected a quote",
        "source": "tasks/3@41",
        "key": "t1",
        "value": "{oops",
        "size": "5",
    }


def test_nothing_in_it_can_steer_a_terminal_and_long_values_are_cut() -> None:
    letter = fields_of(received(b"\x1b[2J\xff" + b"x" * 500, topic=DEAD_LETTERS, key="\x07"))
    assert letter["value"].startswith(r"\x1b[2J\xff")
    assert letter["value"].endswith("x...")
    assert len(letter["value"]) < 250
    assert letter["key"] == r"\x07"
    assert letter["reason"] == "?"
