"""Running one service: its event loop, its signals, its end; and work beside the loop that cannot be interrupted.

::

    RUNNING --SIGINT or SIGTERM--> STOPPING (main task cancelled) --returns--> ended: 0 after SIGTERM, 130 after SIGINT
       |                              '--second signal, or longer than the grace period--> ended by force: 128 + signal
       |--returns--> ended: 0
       '--raises---> the first exception, out of its groups, is raised to the caller
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any

from trinity_bus import awake

GRACE_S = 30.0  # how long a shutdown may take, beside what it waits for on purpose
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_service[R](main: Callable[[], Coroutine[Any, Any, R]], *, grace_s: float = GRACE_S) -> R | None:
    """Run a service until it ends, and return what it returns; None where SIGINT (Ctrl-C) or SIGTERM ended it.

    It is asked by cancellation, so its ``finally`` blocks are its shutdown, which may take ``grace_s`` seconds. Raises
    the first exception that the service raised, and SystemExit (130) after SIGINT.
    """
    stop = _Stop(grace_s)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            result = runner.run(stop.guard(main))
    except BaseExceptionGroup as group:
        first = first_error(group)
        if first is None:
            raise
        raise first from group
    finally:
        stop.over()
    if stop.received == signal.SIGINT:
        raise SystemExit(128 + signal.SIGINT)
    return result


class _Stop:
    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._timer: awake.Alarm | None = None
        self.received: signal.Signals | None = None

    async def guard[R](self, main: Callable[[], Coroutine[Any, Any, R]]) -> R | None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(main(), name="service")
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number, task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.received is None:
                raise
            return None

    def _on_signal(self, number: signal.Signals, task: asyncio.Task[Any]) -> None:
        if self.received is not None:
            _exit(f"stopped at once by a second signal ({number.name})", number)
        self.received = number
        # A thread, because a service that hangs may hang its event loop.
        message = f"did not stop within {self._grace_s:g} s of {number.name}"
        self._timer = awake.Alarm(self._grace_s, partial(_exit, message, number))
        task.cancel()

    def over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _exit(message: str, number: signal.Signals) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    os._exit(128 + number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def first_error(error: BaseException) -> BaseException | None:
    """Return the first exception in an exception group, at any depth, that is no mere cancellation."""
    if not isinstance(error, BaseExceptionGroup):
        return None if isinstance(error, asyncio.CancelledError) else error
    return next((first for member in error.exceptions if (first := first_error(member)) is not None), None)


@contextlib.contextmanager
def interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Within the block, these signals raise ``KeyboardInterrupt`` as Ctrl-C does. For programs with no event loop."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def unless_small[*A, R](size: int, call: Callable[[*A], R], *given: *A) -> R:
    """Return what a call returns, which a thread makes where it reads so many bytes that others would wait for it."""
    return call(*given) if size < 1 << 19 else await asyncio.to_thread(call, *given)


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
