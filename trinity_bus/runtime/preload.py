"""Commands of this program that are forked from a process which has done their imports, instead of started anew.

vLLM takes 9 s of a core to import, once for each of several explorers on one machine. Here one process imports it, and
forks whoever needs it in milliseconds. Orders wait until it has; what is forked keeps all that a :class:`Child` keeps.
What several kinds of commands import is imported once as well: a *branch* is forked as a command is, imports more, and
forks commands of its own.

::

    LOADING --Loaded--> FORKING --close(), or this process dies--> ENDED, with all that it forked
       '-------'--it dies--> ENDED; whoever was to be forked, or was, is told as killed

    a command:  WAITING --Loaded, and there is room for its order--> STARTED --CommandExited--> ENDED
                   '--told to end--> ENDED, never started

An order is one datagram, which Linux lets have about 200 KB: one with more is refused before anything waits for it.

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
from types import TracebackType
from typing import Self

import msgspec

from trinity_bus.runtime.frames import Dialect, ProtocolError
from trinity_bus.runtime.process import Child, Process, ProcessError

_POLL_S = 0.005
_LIMIT = 192 << 10
"""Of a message. Sockets take 212,992 bytes in all (``net.core.wmem_default``), the kernel's own for them included."""


class ForkCommand(msgspec.Struct, tag=1, frozen=True):
    """Fork a command. Where its output goes travels with it, and perhaps a socket: its number is the last argument."""

    serial: int
    name: str
    arguments: list[str]
    env: dict[str, str]


class ForkBranch(msgspec.Struct, tag=6, frozen=True):
    """Fork a branch. Where its output goes, and its end of a channel, travel with it."""

    serial: int
    name: str
    functions: list[str]
    env: dict[str, str]


class SignalCommand(msgspec.Struct, tag=2, frozen=True):
    """Send a signal to a command's guard; nothing happens where it has ended."""

    serial: int
    number: int


class Loaded(msgspec.Struct, tag=3, frozen=True):
    """Everything is imported."""


class CommandForked(msgspec.Struct, tag=4, frozen=True):
    """A command runs."""

    serial: int
    pid: int


class CommandExited(msgspec.Struct, tag=5, frozen=True):
    """A command has ended; minus the signal's number where one killed it."""

    serial: int
    code: int


type Fork = ForkCommand | ForkBranch

TO_PRELOAD: Dialect[Fork | SignalCommand] = Dialect(ForkCommand | ForkBranch | SignalCommand, limit=_LIMIT)
FROM_PRELOAD: Dialect[Loaded | CommandForked | CommandExited] = Dialect(
    Loaded | CommandForked | CommandExited, limit=_LIMIT
)


class Preload:
    """A process that imports, then forks.

    Args:
        start: Starts it, given its end of a channel.
    """

    def __init__(self, start: Callable[[socket.socket], Process]) -> None:
        self._lock = threading.RLock()
        self._loaded = False
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
            functions: What it calls first, as ``module:function``. They import, and start no thread.
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
        """Whether everything is imported."""
        self.look()
        return self._loaded

    def branch(self, functions: Sequence[str], *, name: str, env: Mapping[str, str], output: Path) -> "Preload":
        """Have a process forked that imports more, as soon as everything is imported here.

        Args:
            functions: What it calls first, as ``module:function``.
            name: For people who list processes.
            env: Its whole environment.
            output: File that its output is appended to.

        Returns:
            It, as if it had been started. It ends with this one.
        """
        return Preload(
            lambda theirs: self._fork(
                lambda serial: ForkBranch(serial, name, list(functions), dict(env)), output, passed=theirs
            )
        )

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

        Args:
            arguments: What follows the program's name.
            name: For people who list processes.
            env: Its whole environment.
            output: File that its output is appended to.
            passed: A socket that it is given, and this process no longer has; its number there is the last argument.

        Raises:
            ProcessError: Arguments and environment are larger than an order may be.
        """
        return self._fork(lambda serial: ForkCommand(serial, name, list(arguments), dict(env)), output, passed=passed)

    def _fork(
        self, order: Callable[[int], Fork], output: Path, *, passed: socket.socket | None = None
    ) -> "ForkedCommand":
        with self._lock:
            fork = order(len(self._commands))
            try:
                TO_PRELOAD.encode(fork)
            except ProtocolError as error:
                raise ProcessError(
                    f"{fork.name} cannot be forked: its arguments and environment are too large ({error}); put what is "
                    "large into a file, and give its path"
                ) from error
            command = ForkedCommand(self, fork, output, passed)
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
                        self._loaded = True
                    case CommandForked(serial, pid):
                        self._commands[serial].forked(pid)
                    case CommandExited(serial, code):
                        self._commands[serial].ended(code)
            if self.process.poll() is not None:
                for command in self._commands:
                    command.ended(-signal.SIGKILL)
            elif self._loaded:
                for command in self._commands:
                    command.order()

    def send(self, message: Fork | SignalCommand, descriptors: Sequence[int] = ()) -> bool:
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

    def _receive(self) -> Loaded | CommandForked | CommandExited | None:
        try:
            datagram = self._channel.recv(_LIMIT)
        except (BlockingIOError, ConnectionError):
            return None
        return FROM_PRELOAD.decode(datagram) if datagram else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ForkedCommand(Process):
    """A command that a :class:`Preload` forks. Made by it."""

    def __init__(self, preload: Preload, order: Fork, output: Path, passed: socket.socket | None) -> None:
        self._preload = preload
        self._order = order
        self._output = output
        self._passed = passed
        self._ordered = False
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def name(self) -> str:
        """See ``Process``."""
        return self._order.name

    @property
    def started(self) -> bool:
        """Whether it runs, or has run."""
        self._preload.look()
        return self._pid is not None

    @property
    def pid(self) -> int:
        """Process id of the command. Waits until it is forked; 0 where it never is."""
        while not self.started and self._code is None:
            time.sleep(_POLL_S)
        return self._pid or 0

    def poll(self) -> int | None:
        """See ``Process``."""
        self._preload.look()
        return self._code

    def order(self) -> None:
        """Have it forked, where that was not done and there is room for it. Called by its preload."""
        if self._ordered or self._code is not None:
            return
        output = os.open(self._output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            passed = [output] if self._passed is None else [output, self._passed.fileno()]
            self._ordered = self._preload.send(self._order, passed)
        finally:
            os.close(output)
        if self._ordered:
            self._let_go()

    def forked(self, pid: int) -> None:
        """Note that it runs."""
        self._pid = pid

    def ended(self, code: int) -> None:
        """Note that it has ended."""
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
            while not self._preload.send(SignalCommand(self._order.serial, number)):
                time.sleep(_POLL_S)
        else:
            self.ended(-signal.SIGTERM)
