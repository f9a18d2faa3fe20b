"""A broker that is away does not fill the log."""

import logging

import pytest

from trinity_bus.bus.client.logs import OneLineErrors, Throttle


def test_each_place_speaks_once_in_an_interval() -> None:
    now = [0.0]
    throttle = Throttle(10.0, lambda: now[0])

    def passes(line: int, level: int = logging.ERROR) -> bool:
        return throttle.filter(logging.LogRecord("aiokafka", level, "client.py", line, "x", (), None))

    assert [passes(1), passes(1), passes(2)] == [True, False, True]
    assert passes(1, logging.DEBUG), "debugging is not held back"
    now[0] = 9.9
    assert not passes(1)
    now[0] = 10.0
    assert [passes(1), passes(1)] == [True, False]


@pytest.mark.parametrize("percent", ["%s", "100 %"])
def test_an_exception_is_one_line(percent: str) -> None:
    error = ConnectionError(f"closed {percent}")
    record = logging.LogRecord(
        "aiokafka", logging.ERROR, "sender.py", 1, "in %s", ("sender",), (ConnectionError, error, None)
    )
    assert OneLineErrors().filter(record)
    assert logging.Formatter("%(message)s").format(record) == f"in sender: ConnectionError: closed {percent}"


def test_other_lines_stay_as_they_are() -> None:
    record = logging.LogRecord("aiokafka", logging.ERROR, "sender.py", 1, "in %s", ("sender",), None)
    assert OneLineErrors().filter(record)
    assert record.getMessage() == "in sender"
