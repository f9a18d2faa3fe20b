"""Work that blocks and cannot be interrupted, beside an event loop that must be able to end."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future


async def in_daemon_thread[R](
    work: Callable[[], R], *, name: str, left: Callable[[threading.Thread], object] | None = None
) -> R:
    """Return what ``work`` returns in a thread. Cancelled, the thread continues: ``left`` is told which."""
    # Unlike ``asyncio.to_thread``, whose threads are joined when the loop is closed, it does not keep the process from
    # ending.
    future: Future[R] = Future()
    # Before the thread begins, so that it does its work also where the caller is cancelled at once.
    future.set_running_or_notify_cancel()
    thread = threading.Thread(target=_settle, args=(future, work), name=name, daemon=True)
    thread.start()
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if left is not None:
            left(thread)
        raise


def _settle[R](future: Future[R], work: Callable[[], R]) -> None:
    try:
        future.set_result(work())
    # Whatever it raises is the caller's.
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)
