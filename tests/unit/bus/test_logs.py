"""A broker that is away does not fill the log."""

import logging

import pytest

from trinity_bus.bus.client.connection import BriefLog


def test_each_place_speaks_once_in_an_interval() -> None:
    now = [0.0]
    brief = BriefLog(10.0, lambda: now[0])

    def passes(line: int, level: int = logging.ERROR) -> bool:
        return brief.filter(logging.LogRecord("aiokafka", level, "client.py", line, "x", (), None))

    assert [passes(1), passes(1), passes(2)] == [True, False, True]
    assert passes(1, logging.DEBUG), "debugging is not held back"
    now[0] = 9.9
    assert not passes(1)
    now[0] = 10.0
    assert [passes(1), passes(1)] == [True, False]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (None, "in sender"),
        (ConnectionError("closed %s"), "in sender: ConnectionError: closed %s"),
        (ConnectionError("closed 100 %"), "in sender: ConnectionError: closed 100 %"),
    ],
)
def test_an_exception_is_one_line(error: Exception | None, line: str) -> None:
    trace = None if error is None else (ConnectionError, error, None)
    record = logging.LogRecord("aiokafka", logging.ERROR, "sender.py", 1, "in %s", ("sender",), trace)
    assert BriefLog().filter(record)
    assert logging.Formatter("%(message)s").format(record) == line
