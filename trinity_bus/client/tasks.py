"""Sending tasks, as many as there are, with a bound on how many are under way."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from schemas import Position, Task
from schemas.topics import TASKS
from trinity_bus.bus import Producer

IN_FLIGHT: Final = 1000
"""Tasks that are sent but not yet known to be durable."""


async def send_tasks(producer: Producer, tasks: Iterable[Task], on_queued: Callable[[], None] = lambda: None) -> int:
    """Send tasks and wait until all are durable.

    Args:
        producer: Started.
        tasks: What to send, keyed by task id.
        on_queued: Called after each is handed over.

    Returns:
        How many.

    Raises:
        SendError: One is not known to be durable.
    """
    pending: list[asyncio.Future[Position]] = []
    count = 0
    for task in tasks:
        pending.append(asyncio.ensure_future(await producer.send(TASKS, task.task_id, task)))
        count += 1
        on_queued()
        if len(pending) >= IN_FLIGHT:
            await asyncio.gather(*pending)
            pending.clear()
    await asyncio.gather(*pending)
    return count
