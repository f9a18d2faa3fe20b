"""Commands of this program that are forked from a process which has done their imports, instead of started anew.

vLLM takes 9 s of a core to import, once for each of several explorers on one machine. Here one process imports it, and
forks whoever needs it in milliseconds. Orders wait until it has; what is forked keeps all that a :class:`Child` keeps.
What several kinds of commands import is imported once as well: a *branch* is forked as a command is, imports more, and
forks commands of its own.

::

    LOADING --Loaded--> FORKING --close(), or this process dies--> ENDED, with all that it forked
       '-------'--it dies--> ENDED; whoever was to be forked, or was, is told as killed

    a command:  WAITING --Loaded, its turn has come, and there is room for its order--> STARTED --ChildExited--> ENDED
                   '--told to end--> ENDED, never started

An order is one datagram, which Linux lets have about 200 KB: one with more is refused before anything waits for it. The
environment is no part of it, but a file in memory that only the forked process reads: what it has of secrets is never
in the process that forks, and so in nothing else that is forked from that.

It has one thread and no CUDA context, so nothing is lost by the fork; what an import reads from the environment is what
this process had when it started. Linux only.
"""

import contextlib
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
from trinity_bus.runtime.process import Child, Process, ProcessError

_POLL_S = 0.005
# Of a message. Sockets take 212,992 bytes in all (``net.core.wmem_default``), the kernel's own for them included.
_LIMIT = 192 << 10


class ForkCommand(msgspec.Struct, tag="command", frozen=True):
    """Fork a command. Where its output goes and its environment travel with it, perhaps a socket, its last argument."""

    serial: int
    name: str
    arguments: list[str]


class ForkBranch(msgspec.Struct, tag="branch", frozen=True):
    """Fork a branch. Where its output goes, its environment, and its end of a channel travel with it."""

    serial: int
    name: str
    functions: list[str]
    main: str | None = None  # what its commands are; unset: what those of the forking process are


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    pass


type Fork = ForkCommand | ForkBranch

TO_PRELOAD: Dialect[Fork | SignalChild] = Dialect(ForkCommand | ForkBranch | SignalChild, limit=_LIMIT)
FROM_PRELOAD: Dialect[Loaded | ChildForked | ChildExited] = Dialect(Loaded | ChildForked | ChildExited, limit=_LIMIT)


class Preload:
    """A process that imports, then forks. ``start`` starts it, given its end of a channel."""

    def __init__(self, start: Callable[[socket.socket], Process]) -> None:
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
        """Start one anew.

        Args:
            functions: What it imports, as ``module``, or calls first, as ``module:function``. They start no thread.
            name: For people who list processes.
            main: What a command is, as ``module:function``: called with ``sys.argv`` set.
            env: Its whole environment. Unset: this process's.
            output: File that its own output is appended to.
        """

        def start(theirs: socket.socket) -> Child:
            program = [sys.executable, "-m", "trinity_bus.runtime.preload_main"]
            with theirs:
                return Child(
                    [*program, str(theirs.fileno()), name, main, *functions],
                    # Titles of processes are not to be written over the environment that /proc shows of them.
                    env={**(os.environ if env is None else env), "SPT_NOENV": "1"},
                    output=output,
                    pass_fds=[theirs.fileno()],
                )

        return cls(start)

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
        return Preload(
            lambda theirs: self._fork(
                lambda serial: ForkBranch(serial, name, list(functions), main), env, output, passed=theirs, turn=turn
            )
        )

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
    ) -> "ForkedCommand":
        """Have a command forked, as soon as everything is imported.

        ``passed`` is a socket that it is given, and this process no longer has; its number there is the last argument.
        ProcessError: the arguments are larger than an order may be.
        """
        return self._fork(lambda serial: ForkCommand(serial, name, list(arguments)), env, output, passed=passed)

    def _fork(
        self,
        order: Callable[[int], Fork],
        env: Mapping[str, str],
        output: Path,
        *,
        passed: socket.socket | None = None,
        turn: Callable[[], bool] | None = None,
    ) -> "ForkedCommand":
        with self._lock:
            fork = order(len(self._commands))
            try:
                TO_PRELOAD.encode(fork)
            except ProtocolError as error:
                raise ProcessError(
                    f"{fork.name} cannot be forked: its arguments are too large ({error}); put what is large into a "
                    "file, and give its path"
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
        with contextlib.ExitStack() as opened:

            def own(descriptor: int) -> int:
                opened.callback(os.close, descriptor)
                return descriptor

            output = own(os.open(self._output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644))
            passed = [output, own(write_environment(self._env))]
            if self._passed is not None:
                passed.append(self._passed.fileno())
            self._ordered = self._preload.send(self._order, passed)
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
    """Return the descriptor of a file in memory that holds an environment, as ``/proc/PID/environ`` shows one."""
    descriptor = os.memfd_create("environment")
    with open(descriptor, "wb", closefd=False) as file:
        file.writelines(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    return descriptor


def read_environment(descriptor: int) -> dict[str, str]:
    """Return what :func:`write_environment` has written, and close it."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0")[:-1]]
    return {name: value for name, _, value in entries}
