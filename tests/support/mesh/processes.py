"""Looking at processes from outside."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from trinity_bus.runtime.process import Process, tail


@contextlib.contextmanager
def log_shown_on_failure(child: Process, log: Path) -> Iterator[None]:
    """Prints how a child is and what it said last, where the block fails."""
    try:
        yield
    except BaseException:
        print(f"{log.name}, status {child.poll()}:\n{tail(log, 100)}")
        raise


def family_of(pid: int) -> list[psutil.Process]:
    """A process and all its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def marked_processes(variable: str, value: str) -> list[psutil.Process]:
    """All living processes that have inherited a variable of the environment, whatever they are called."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def assert_all_gone(processes: list[psutil.Process], limit_s: float = 10) -> None:
    """Fail unless they end soon. A zombie runs no more: when it is reaped is the machine's affair."""
    deadline = time.monotonic() + limit_s
    while alive := [process for process in processes if is_alive(process)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.01)


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
