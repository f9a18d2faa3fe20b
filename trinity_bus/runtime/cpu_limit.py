"""A limit of the processor's time that a call may take: somebody else's program that never ends is broken off.

::

    RUNNING --returns, raises--> over
       '--the thread has computed for longer: an exception is raised in it at its next step--> TimeoutError

Time counts only while the thread computes, not while the machine is busy or stands still. One thread looks on, once a
second, while there is something to look at. What computes in one step of C is not broken off before that step ends.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 1.0
_RAISE: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _BrokenOffError(BaseException):
    # Raised from outside; no ``except Exception`` of the called program keeps it.
    pass


class _Watch:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[int, tuple[int, float]] = {}  # clock of each thread, and what it may show
        self._looks = False

    def begin(self, thread: int, limit_s: float) -> None:
        clock = time.pthread_getcpuclockid(thread)
        with self._changed:
            if not self._looks:
                # It waits for this lock. Where there is no room for a thread now, there may be at the next call.
                threading.Thread(target=self._look, name="cpu-limit", daemon=True).start()
                self._looks = True
            self._running[thread] = clock, time.clock_gettime(clock) + limit_s

    def end(self, thread: int) -> None:
        with self._changed:
            self._running.pop(thread, None)
        _RAISE(ctypes.c_ulong(thread), None)

    def _look(self) -> None:
        with self._changed:
            while self._running:
                self._changed.wait(_LOOK_S)
                for thread, (clock, until) in list(self._running.items()):
                    if time.clock_gettime(clock) > until:
                        del self._running[thread]
                        _RAISE(ctypes.c_ulong(thread), ctypes.py_object(_BrokenOffError))
            self._looks = False


_watch = _Watch()


def _forget() -> None:
    # A forked process has none of the threads.
    global _watch  # noqa: PLW0603 - one for the process
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget)


def limited[T](limit_s: float, call: Callable[[], T]) -> T:
    """Return what a call returns; TimeoutError where it has computed for longer than ``limit_s``."""
    watch, thread = _watch, threading.get_ident()
    try:
        watch.begin(thread, limit_s)
        try:
            return call()
        finally:
            watch.end(thread)
    except _BrokenOffError:
        watch.end(thread)
        raise TimeoutError(f"it was broken off after {limit_s:g} s of the processor's time") from None
