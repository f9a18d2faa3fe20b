"""Waiting for what another process or thread does: on the condition itself, with a limit."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


def wait_until(
    condition: Callable[[], bool], what: str = "what was waited for", limit_s: float = 60.0, every_s: float = 0.005
) -> None:
    """Return as soon as a condition holds; fail where it does not within the limit. It is asked every so often."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {limit_s:g} s"
        time.sleep(every_s)


async def until(condition: Callable[[], bool], limit_s: float = 150.0) -> None:
    """Like :func:`wait_until`, while the event loop turns."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - it happens in another process, or in a fake that sets no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def beside[T](work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Have work done beside the block; at the block's end it is cancelled."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
