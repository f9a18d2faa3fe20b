"""The client library's log, kept readable while a broker is away.

It logs every failed attempt of every connection, tens of lines a second. The first line from each place in its code is
let through, then one in ten seconds. An exception is one line: whoever called the client gets it too.
"""

import logging
from collections.abc import Callable

from trinity_bus import awake

INTERVAL_S = 10.0
LOGGERS = ("aiokafka", "aiokafka.cluster", "aiokafka.conn", "aiokafka.producer.sender", "aiokafka.consumer.fetcher")


class Throttle(logging.Filter):
    # One record for each place in the code and interval; debug records are not counted.
    def __init__(self, interval_s: float = INTERVAL_S, clock: Callable[[], float] = awake.now) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._next: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        place, now = (record.pathname, record.lineno), self._clock()
        if now < self._next.get(place, now):
            return False
        self._next[place] = now + self._interval_s
        return True


class OneLineErrors(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}: {error}", None
            record.exc_info = None
        return True


_THROTTLE, _BRIEF = Throttle(), OneLineErrors()


def throttle_client_logs() -> None:
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_THROTTLE)
        logging.getLogger(name).addFilter(_BRIEF)
