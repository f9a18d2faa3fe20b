"""Child processes that never outlive this one, and whose own children never outlive them.

A :class:`Child` is a command under a guard (:mod:`trinity_bus.runtime.guard`): a small process between this one and the
command. It is in a session of its own, so Ctrl-C in the terminal reaches this process alone, which then decides.

::

    RUNNING --terminate()--> RUNNING (asked to end) --ends--> ENDED (its exit status)
       |------kill()------------------------------------------> ENDED
       |------this process dies, however----------------------> ENDED, all descendants too

Linux only: it uses subreapers, parent-death signals and ``/proc``.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from trinity_bus import awake
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.plain_files import append_plain

_GUARD = Path(__file__).with_name("guard.py")
_POLL_S = 0.01
_GUARD_LIMIT_S = 5.0


class ProcessError(TrinityError):
    pass


def how_ended(status: int) -> str:
    """Return what a process's exit status says, or minus the signal's number where one killed it."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was ended by {name}"


class Process(ABC):
    """A running command that dies with this process, however it was started."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def poll(self) -> int | None:
        """Return its exit status, minus the signal's number where one killed it, None while it runs. Thread-safe."""

    @abstractmethod
    def _signal(self, number: signal.Signals) -> None: ...

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until it has ended, or until the limit; return its exit status, None where it still runs."""
        deadline = None if timeout_s is None else awake.now() + timeout_s
        while (code := self.poll()) is None:
            if deadline is not None and awake.now() >= deadline:
                return None
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """Ask the command, and only it, to end (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> int:
        """Kill it and all its descendants, and wait until they are gone; return its exit status."""
        self._signal(signal.SIGUSR2)
        code = self.wait(_GUARD_LIMIT_S)
        if code is None:
            self._signal(signal.SIGKILL)
            code = self.wait(_GUARD_LIMIT_S)
        if code is None:
            raise ProcessError(f"process {self.pid} ({self.name}) cannot be killed")
        return code

    def stop(self, grace_s: float) -> int:
        """Ask it to end, and kill whatever is left of it after the grace period; return its exit status."""
        self.terminate()
        code = self.wait(grace_s)
        return self.kill() if code is None else code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Child(Process):
    """A running command that dies with this process. The program is looked up on ``PATH``; standard input is empty.

    ``env`` is its whole environment, and ``cwd`` its working folder; unset: this process's. What it prints goes to
    ``output``: a file, which is appended to, or an open descriptor; unset: where this process's goes. It keeps
    ``pass_fds``, open descriptors, under their numbers. ProcessError: the guard cannot be started, or this is no Linux.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output: Path | IO[bytes] | int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        if sys.platform != "linux":
            raise ProcessError(f"child processes need Linux (or WSL 2 on Windows), and this is {sys.platform}")
        self.command = [str(part) for part in command]
        read_end, write_end = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, read_end)
            with contextlib.ExitStack() as before:
                before.callback(os.close, write_end)
                stdout = before.enter_context(append_plain(output)) if isinstance(output, Path) else output
                try:
                    self._guard = subprocess.Popen(  # noqa: S603  the command is the caller's, no shell is involved
                        [sys.executable, "-I", "-S", _GUARD, str(os.getpid()), str(write_end), *self.command],
                        env=env,
                        cwd=cwd,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=None if stdout is None else subprocess.STDOUT,
                        pass_fds=(*pass_fds, write_end),
                        start_new_session=True,
                    )
                except OSError as error:
                    raise ProcessError(f"cannot start {self.command[0]}: {error}") from error
            with os.fdopen(os.dup(read_end), "rb") as file:
                answer = file.read()
        if not answer:
            raise ProcessError(f"cannot start {self.command[0]}: its guard ended with {self._guard.wait()}")
        self._pid = int(answer)
        self._reaping = threading.Lock()

    @property
    def name(self) -> str:
        return self.command[0]

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        # Only one of two threads can reap it, and the other would find no such process.
        with self._reaping:
            if self._guard.returncode is None and has_ended(self._guard.pid):
                # Not yet reaped: its process id, which is the session's id too, cannot belong to anyone else.
                kill_session(self._guard.pid)
                self._guard.wait()
            return self._guard.returncode

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            self._guard.send_signal(number)


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: a later one with its id has another. None: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def age_s() -> float:
    """Return for how long this process has been there, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (start_time(os.getpid()) or 0) / os.sysconf("SC_CLK_TCK")


def tail(path: Path, lines: int = 20, *, limit_bytes: int = 64 * 1024) -> str:
    """Return the last lines of a text file; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit_bytes))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended. It is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_session(session: int) -> None:
    """Kill what is left of a session whose leader has ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != session:
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)
