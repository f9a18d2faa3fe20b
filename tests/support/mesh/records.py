"""What a test expects of records that it reads."""

import asyncio
from collections.abc import Callable
from typing import Any

from trinity_bus.bus import Reader, Received
from trinity_bus.bus.read.received import Undecodable


def record_of[R](received: Received[R]) -> R:
    """The record, which must be one that its codec takes."""
    assert not isinstance(received.record, Undecodable), received.record
    return received.record


async def first[R](
    reader: Reader, kind: type[R], fits: Callable[[R], bool] = lambda _: True, limit_s: float = 150.0
) -> R:
    """The next record of a kind that fits; all before it are passed over."""
    async with asyncio.timeout(limit_s):
        while True:
            for received in await reader.batch(1.0):
                if isinstance(received.record, kind) and fits(received.record):
                    return received.record


async def take(reader: Reader, count: int, limit_s: float = 150.0) -> list[Received[Any]]:
    """The next records of a reader, as soon as there are so many."""
    found: list[Received[Any]] = []
    async with asyncio.timeout(limit_s):
        while len(found) < count:
            found += await reader.batch(1.0)
    return found
