"""A broker that is away does not fill the log."""

import logging

from trinity_bus.bus.logs import Throttle


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
