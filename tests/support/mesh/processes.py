"""Looking at processes from outside."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.mesh.waiting import wait_until
from trinity_bus.runtime.process import Process, tail

MARK = "XDG_PROGRAM_UNDER_TEST"
"""A variable that every process of a program inherits, runners too: by it they are found, whatever they are called."""


class Program:
    """A command as a user starts it, without a terminal; what it prints is in a file."""

    def __init__(self, command: Sequence[str], output: Path, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self.output = output
        self._mark = f"{output}-{os.getpid()}"
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                env={**env, MARK: self._mark},
                cwd=cwd,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text()

    def family(self) -> list[psutil.Process]:
        """All living processes of it, its own too."""
        return marked_processes(MARK, self._mark)

    def until(self, condition: Callable[[], bool], what: str, limit_s: float, every_s: float = 0.05) -> None:
        """Waits for a condition, as long as the program runs."""
        wait_until(lambda: condition() or self.process.poll() is not None, what, limit_s, every_s)
        assert self.process.poll() is None, f"it ended with {self.process.poll()} before {what}:\n{self.said()}"

    def ended(self, limit_s: float) -> int:
        """Its status, once it and all that it has started have ended."""
        code = self.process.wait(limit_s)
        wait_until(lambda: not self.family(), "end of every process", 60.0, 0.1)
        return code

    def kill(self) -> None:
        """End whatever is left of it."""
        self.process.kill()
        self.process.wait()
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


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


def children_with(text: str) -> list[psutil.Process]:
    """What this process has started that still runs and has the text in its command line."""
    return [child for child in psutil.Process().children(recursive=True) if text in command_of(child)]


def command_of(process: psutil.Process) -> str:
    """Its command line; nothing where it has ended since it was listed, whether it has been waited for or not."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # A zombie's error is one of these.
        return ""


def name_of(process: psutil.Process) -> str:
    """Its name; nothing where it has ended since it was listed."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


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


def assert_all_gone(processes: list[psutil.Process], limit_s: float = 60) -> None:
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
