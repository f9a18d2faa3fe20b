"""Work that blocks and cannot be interrupted, beside an event loop that must be able to end."""

import asyncio
import contextlib
import threading
from collections.abc import Callable


async def in_daemon_thread(work: Callable[[], None], *, name: str) -> None:
    """Wait for ``work`` in a thread. Cancelled, the thread continues, and does not keep the process from ending."""
    # Unlike ``asyncio.to_thread``, whose threads are joined when the loop is closed. What ``work`` raises is raised; it
    # returns nothing, so that nothing is kept alive by the thread's leftovers.
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def report(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: Exception | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again by the one who waits
            failure = error
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(report, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    await done
