from typing import Any

from schemas.topics import DEAD_LETTERS
from tests.support.fakes.received import received
from workers.cli.topics import fields_of


def test_a_dead_letter_is_flat_text_in_which_nothing_can_steer_a_terminal() -> None:
    headers = (("dlq.reason", b"not_json"), ("dlq.topic", b"tasks"), ("dlq.partition", b"3"), ("dlq.offset", b"41"))
    told: dict[str, Any] = {"raw": b"\x1b[2J\xff" + b"x" * 500, "key": "\x07", "headers": headers}
    told["timestamp_ms"] = 1_700_000_000_123
    letter = fields_of(received(None, DEAD_LETTERS, **told))
    value = letter.pop("value")
    assert (value[:11], value[-4:], len(value) < 250) == (r"\x1b[2J\xff", "x...", True)
    assert letter == {
        "time": "2023-11-14T22:13:20.123+00:00",
        "reason": "not_json",
        "detail": "",
        "source": "tasks/3@41",
        "key": r"\x07",
        "size": "505",
    }
