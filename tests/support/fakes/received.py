"""Records as a reader returns them, and futures as a producer does, without a log."""

import asyncio
from typing import Any

from schemas.topic import Topic
from trinity_bus.bus import Received


def received(record: Any, topic: Topic, offset: int = 0, **fields: Any) -> Received[Any]:
    """A record with a place in the log and nothing more."""
    given = {"partition": 0, "key": None, "raw": b"", "headers": (), "traceparent": None, "timestamp_ms": 0}
    return Received(record=record, topic=topic, offset=offset, **given | fields)


def durable() -> "asyncio.Future[None]":
    """What sending returns, when the brokers have stored the record."""
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    written.set_result(None)
    return written
