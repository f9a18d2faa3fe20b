"""Commands of this program that are forked from a process which has done their imports, instead of started anew.

vLLM takes 9 s of a core to import, once for each of several explorers on one machine. Here one process imports it, and
forks whoever needs it in milliseconds. Orders wait until it has; what is forked keeps all that a :class:`Child` keeps.
What several kinds of commands import is imported once as well: a *branch* is a command that is this program itself; it
imports more, and forks commands of its own.

::

    LOADING --Loaded--> FORKING --close(), or this process dies--> ENDED, with all that it forked
       '-------'--it dies--> ENDED; whoever was to be forked, or was, is told as killed

    a command:  WAITING --Loaded, its turn has come, and there is room for its order--> STARTED --ChildExited--> ENDED
                   '--told to end--> ENDED, never started

An order is one datagram, which Linux lets have about 200 KB: one with more is refused. The environment is no part of
it, but a file in memory that only the forked process reads: what it has of secrets is never in the process that forks.
That has one thread and no CUDA context, so nothing is lost by the fork. Linux only.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from trinity_bus.runtime.forking import ChildExited, ChildForked, SignalChild
from trinity_bus.runtime.frames import Dialect, ProtocolError
from trinity_bus.runtime.plain_files import append_plain
from trinity_bus.runtime.process import Child, Process, ProcessError

_POLL_S = 0.005
# Of a message. Sockets take 212,992 bytes in all (``net.core.wmem_default``), the kernel's own for them included.
_LIMIT = 192 << 10


class Fork(msgspec.Struct, tag="command", frozen=True):
    """Fork a command. Where its output goes and its environment travel with it, perhaps a socket, its last argument."""

    serial: int
    name: str
    arguments: list[str]
    is_branch: bool = False  # it is no command of this process's own kind, but ``preload_main`` once more


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    pass


TO_PRELOAD: Dialect[Fork | SignalChild] = Dialect(Fork | SignalChild, limit=_LIMIT)
FROM_PRELOAD: Dialect[Loaded | ChildForked | ChildExited] = Dialect(Loaded | ChildForked | ChildExited, limit=_LIMIT)


class Preload:
    """A process that imports, then forks ``main``. ``start`` starts it, given its end of a channel."""

    def __init__(self, main: str, start: Callable[[socket.socket], Process]) -> None:
        self._main = main
        self._lock = threading.RLock()
        self.has_loaded = False  # whether it has said so, as of the last ``look``
        self._commands: list[ForkedCommand] = []
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self.process = start(theirs)

    @classmethod
    def begin(
        cls,
        functions: Sequence[str],
        *,
        name: str,
        main: str,
        env: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> Self:
        """Start one anew; ``name`` is for people who list processes, ``output`` a file that is appended to.

        It imports, or calls, ``functions`` first, each ``module`` or ``module:function``, which start no thread.
        ``main`` is what a command is, called with ``sys.argv`` set. ``env``: its whole environment; unset: this
        process's.
        """

        def start(theirs: socket.socket) -> Child:
            program = [sys.executable, "-m", "trinity_bus.runtime.preload_main", name, main, *functions]
            with theirs:
                return Child(
                    [*program, str(theirs.fileno())],
                    # Titles of processes are not to be written over the environment that /proc shows of them.
                    env={**(os.environ if env is None else env), "SPT_NOENV": "1"},
                    output=output,
                    pass_fds=[theirs.fileno()],
                )

        return cls(main, start)

    @property
    def loaded(self) -> bool:
        self.look()
        return self.has_loaded

    def branch(
        self,
        functions: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str],
        output: Path,
        main: str | None = None,
        turn: Callable[[], bool] | None = None,
    ) -> "Preload":
        """Have a process forked that imports more, as soon as everything is imported here. It ends with this one."""
        # Arguments are those of ``begin``; ``main`` unset: what a command of this process is. ``turn``: whether it may
        # begin, asked again at each ``look`` until it may.
        main = main or self._main

        def start(theirs: socket.socket) -> "ForkedCommand":
            program = [name, main, *functions]
            return self.start(program, name=name, env=env, output=output, passed=theirs, turn=turn, is_branch=True)

        return Preload(main, start)

    def fileno(self) -> int:
        """Return what can be read from when there is something to ``look`` at; -1 once it is closed."""
        return self._channel.fileno()

    def start(
        self,
        arguments: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str],
        output: Path,
        passed: socket.socket | None = None,
        turn: Callable[[], bool] | None = None,
        is_branch: bool = False,
    ) -> "ForkedCommand":
        """Have a command forked, as soon as everything is imported.

        ``passed`` is a socket that it is given, and this process no longer has; its number there is the last argument.
        ProcessError: the arguments are larger than an order may be.
        """
        with self._lock:
            fork = Fork(len(self._commands), name, list(arguments), is_branch)
            try:
                TO_PRELOAD.encode(fork)
            except ProtocolError as error:
                raise ProcessError(
                    f"{name} cannot be forked: its arguments are too large ({error}); put what is large into a file, "
                    "and give its path"
                ) from error
            command = ForkedCommand(self, fork, dict(env), output, passed=passed, turn=turn)
            self._commands.append(command)
        self.look()
        return command

    def look(self) -> None:
        """Take in what there is to hear, and order what is to be ordered. Does not wait."""
        with self._lock:
            if self._channel.fileno() < 0:
                return
            while message := self._receive():
                match message:
                    case Loaded():
                        self.has_loaded = True
                    case ChildForked(serial, pid):
                        self._commands[serial].forked(pid)
                    case ChildExited(serial, code):
                        self._commands[serial].ended(code)
            if self.process.poll() is not None:
                for command in self._commands:
                    command.ended(-signal.SIGKILL)
            elif self.has_loaded:
                for command in self._commands:
                    command.order()

    def send(self, message: Fork | SignalChild, descriptors: Sequence[int] = ()) -> bool:
        """Order something; False: there is no room for it now. Where it is gone, whoever looks is told."""
        with self._lock, contextlib.suppress(ConnectionError):
            try:
                socket.send_fds(self._channel, [TO_PRELOAD.encode(message)], list(descriptors))
            except BlockingIOError:
                return False
        return True

    def close(self) -> None:
        """End it, and all that it has forked."""
        with self._lock:
            self.process.kill()
            self.look()
            self._channel.close()

    def _receive(self) -> Loaded | ChildForked | ChildExited | None:
        try:
            datagram = self._channel.recv(_LIMIT)
        except (BlockingIOError, ConnectionError):
            return None
        return FROM_PRELOAD.decode(datagram) if datagram else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ForkedCommand(Process):
    """A command that a :class:`Preload` forks. Made by it."""

    def __init__(
        self,
        preload: Preload,
        order: Fork,
        env: Mapping[str, str],
        output: Path,
        *,
        passed: socket.socket | None,
        turn: Callable[[], bool] | None,
    ) -> None:
        self._preload = preload
        self._order = order
        self._env = env
        self._output = output
        self._passed = passed
        self._turn = turn
        self._ordered = False
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def name(self) -> str:
        return self._order.name

    @property
    def started(self) -> bool:
        self._preload.look()
        return self._pid is not None

    @property
    def pid(self) -> int:
        # Waits until it is forked; 0 where it never is.
        while not self.started and self._code is None:
            time.sleep(_POLL_S)
        return self._pid or 0

    def poll(self) -> int | None:
        self._preload.look()
        return self._code

    def order(self) -> None:
        """Have it forked, where that was not done, it may be, and there is room for it. Called by its preload."""
        if self._ordered or self._code is not None or not (self._turn is None or self._turn()):
            return
        environment = write_environment(self._env)
        try:
            with append_plain(self._output) as output:
                passed = [output.fileno(), environment, *([] if self._passed is None else [self._passed.fileno()])]
                self._ordered = self._preload.send(self._order, passed)
        finally:
            os.close(environment)
        if self._ordered:
            self._let_go()

    def forked(self, pid: int) -> None:
        self._pid = pid

    def ended(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._let_go()

    def _let_go(self) -> None:
        if self._passed is not None:
            self._passed.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is not None:
            return
        if self._ordered:
            while not self._preload.send(SignalChild(self._order.serial, number)):
                time.sleep(_POLL_S)
        else:
            self.ended(-signal.SIGTERM)


def write_environment(env: Mapping[str, str]) -> int:
    """Return the descriptor of a file in memory that holds an environment."""
    descriptor = os.memfd_create("environment")
    with open(descriptor, "w", encoding="ascii", closefd=False) as file:
        json.dump(dict(env), file)
    return descriptor


def read_environment(descriptor: int) -> dict[str, str]:
    """Return what :func:`write_environment` has written, and close it."""
    with open(descriptor, encoding="ascii") as file:
        file.seek(0)
        env: dict[str, str] = json.load(file)
    return env
