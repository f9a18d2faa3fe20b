"""Runs one command and answers for its whole family: none of it outlives the owner, whatever kills the owner.

This file is a program: :mod:`trinity_bus.runtime.process` starts ``python -I -S guard.py OWNER REPORT_FD COMMAND...``.
:mod:`trinity_bus.runtime.preload_main` forks one instead for each command that it forks. It uses nothing but the
standard library: it is there in some 20 ms and takes about 8 MiB. It is the command's parent; as a "child subreaper" it
also becomes the parent of every descendant whose own parent dies, whatever its session.

::

    RUNNING --command ended-----------------> SWEEPING --no child left--> exit as the command did
       |----owner gone (pidfd), or SIGUSR2--> SWEEPING
       |----SIGTERM: passed on to the command, stays RUNNING

Failures: the owner is killed: the guard sees it and kills the family. The guard is killed: the kernel kills the command
(parent-death signal), and the owner kills what is left of the session. Both are killed at once: the command dies; its
children that were themselves started through a guard die with it.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Container
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_POLL_MS = 100  # how often the owner is looked at on a kernel without pidfds


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as the thread of ``parent`` that forked it ends, at once if it has."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def descendants(root: int, *, without: Container[int] = ()) -> list[int]:
    """Process ids below ``root``, parents before their children, zombies too; not ``without`` and those below."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # The process may end between the listing and the look.
            with contextlib.suppress(OSError):
                # The name, in parentheses, may hold spaces and parentheses itself.
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for parent in level for child in children.get(parent, ()) if child not in without]
        found += level
    return found


class HeardSignals:
    """Signals as something to poll, for a process of one thread, which has one of these at most."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: what is started from here must begin with the default actions.
        for number in numbers:
            signal.signal(number, lambda _number, _frame: None)

    def fileno(self) -> int:
        return self._read_end

    def take(self) -> set[int]:
        # Those that have come since the last time, where there are any.
        return set(os.read(self._read_end, 4096))

    def close(self) -> None:
        """Hear no more of them, in a forked process: they have their default actions there."""
        signal.set_wakeup_fd(-1)
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        os.close(self._read_end)
        os.close(self._write_end)


class Guard:
    """Guard of a command and of what it starts; ``owner`` is the process that all this must not outlive."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self.command = 0
        self._signals = HeardSignals(*_HEARD)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._owner_fd = os.pidfd_open(owner) if hasattr(os, "pidfd_open") else None
        if os.getppid() != owner:
            sys.exit("guard: the owner is gone")
        self._status: int | None = None

    def fork(self) -> bool:
        """Fork the process that is to become the command; True in it, where nothing is left of the guard."""
        guard = os.getpid()
        self.command = os.fork()
        if self.command != 0:
            return False
        die_with_parent(guard)
        self._signals.close()
        if self._owner_fd is not None:
            os.close(self._owner_fd)
        return True

    def run(self) -> NoReturn:
        """Stay until the command or the owner ends, then end as the command did."""
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        if self._owner_fd is not None:
            poll.register(self._owner_fd, select.POLLIN)
        while self._status is None:
            ready = {fd for fd, _ in poll.poll(None if self._owner_fd is not None else _POLL_MS)}
            received = self._signals.take() if self._signals.fileno() in ready else set[int]()
            if signal.SIGTERM in received:
                os.kill(self.command, signal.SIGTERM)
            self._reap(block=False)
            if self._owner_fd in ready or os.getppid() != self._owner or signal.SIGUSR2 in received:
                break
        self._sweep()
        self._exit()

    def _reap(self, *, block: bool) -> bool:
        # False when there is no child left at all.
        try:
            while True:
                pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
                if pid == self.command:
                    self._status = status
                if block or pid == 0:
                    return True
        except ChildProcessError:
            return False

    def _sweep(self) -> None:
        # Orphans become children of the guard, so it is done when there is none left.
        while True:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not self._reap(block=True):
                return

    def _exit(self) -> NoReturn:
        status = self._status if self._status is not None else signal.SIGKILL
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(os.waitstatus_to_exitcode(status) if not os.WIFSIGNALED(status) else 128 + os.WTERMSIG(status))


def become(command: list[str]) -> NoReturn:
    """Run a program in place of this one."""
    # Python ignores these two, and what is ignored stays ignored in the program that takes over.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606  no shell is wanted
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def main() -> NoReturn:
    owner, report, *command = sys.argv[1:]
    # Closed by exec in the command too: the owner reads to the end, so it goes on once the command is really running.
    os.set_inheritable(int(report), False)
    guard = Guard(int(owner))
    if guard.fork():
        become(command)
    os.write(int(report), f"{guard.command}\n".encode())
    os.close(int(report))
    guard.run()


if __name__ == "__main__":
    main()
