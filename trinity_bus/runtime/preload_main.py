"""``python -m trinity_bus.runtime.preload_main SOCKET NAME MAIN FUNCTION...``: imports, then forks commands.

See :mod:`trinity_bus.runtime.preload`. Each command is forked with a guard of its own between, as one that is started
anew has (:mod:`trinity_bus.runtime.guard`): the guard's owner is this process, and this process has a guard itself.

Failures: a function raises: this process ends with the traceback, and what waits is told as killed. It is killed: the
guards see it, and end their families.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from setproctitle import setproctitle

from trinity_bus.runtime.guard import Guard, HeardSignals
from trinity_bus.runtime.heap import importing
from trinity_bus.runtime.preload import (
    FROM_PRELOAD,
    TO_PRELOAD,
    CommandExited,
    CommandForked,
    Fork,
    ForkBranch,
    ForkCommand,
    Loaded,
    SignalCommand,
    read_environment,
)
from trinity_bus.runtime.process import has_ended, kill_session


def named(reference: str) -> Callable[[], Any]:
    """Return a function that this process's own command line names, as ``module:function``."""
    module, _, function = reference.partition(":")
    found: Callable[[], Any] = getattr(importlib.import_module(module), function)
    return found


class Preloaded:
    """Forks commands, and tells of their ends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._guards: dict[int, int] = {}  # serial to the process id of the guard
        self._ended = HeardSignals(signal.SIGCHLD)

    def run(self) -> tuple[Fork, list[int]] | None:
        """Serve until the owner is gone, and return None."""
        # In a forked process, which has nothing of this one's any more, return what it is to do, and the descriptors
        # that came with it beside those of output and environment.
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._ended.fileno() in ready:
                self._ended.take()
                self._reap()
            if self._channel.fileno() in ready:
                datagram, descriptors, _, _ = socket.recv_fds(self._channel, TO_PRELOAD.limit, 3)
                if not datagram:
                    return None
                match TO_PRELOAD.decode(datagram):
                    case ForkCommand() | ForkBranch() as order:
                        if self._fork(order, *descriptors):
                            return order, descriptors[2:]
                    case SignalCommand(serial, number):
                        # Not yet reaped, so the process id is still its own.
                        if serial in self._guards:
                            os.kill(self._guards[serial], number)

    def _fork(self, order: Fork, output: int, environment: int, *passed: int) -> bool:
        # Fork a guard and its command; True in the command.
        owner = os.getpid()
        # The guard's word that the command runs, or its end.
        read_end, write_end = os.pipe()
        guard = os.fork()
        if guard == 0:
            os.close(read_end)
            self._become_child(output, environment)
            supervising = Guard(owner)
            if supervising.fork():
                os.close(write_end)
                return True
            for descriptor in passed:
                os.close(descriptor)
            setproctitle(f"guard of trinity-bus: {order.name}")
            os.write(write_end, str(supervising.command).encode())
            os.close(write_end)
            supervising.run()
        for descriptor in (output, environment, write_end, *passed):
            os.close(descriptor)
        self._guards[order.serial] = guard
        with os.fdopen(read_end, "rb") as file:
            said = file.read()
        if said:
            self._tell(CommandForked(order.serial, int(said)))
        return False

    def _become_child(self, output: int, environment: int) -> None:
        # Let go of what is the forking process's, and take what is the command's.
        os.setsid()
        self._channel.close()
        self._ended.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, place)
        os.close(nothing)
        os.close(output)
        os.environ.clear()
        os.environ.update(read_environment(environment))

    def _reap(self) -> None:
        for serial, guard in list(self._guards.items()):
            if has_ended(guard):
                kill_session(guard)
                _, status = os.waitpid(guard, 0)
                del self._guards[serial]
                self._tell(CommandExited(serial, os.waitstatus_to_exitcode(status)))

    def _tell(self, message: Loaded | CommandForked | CommandExited) -> None:
        # Where the owner is gone, this process is about to be.
        with contextlib.suppress(ConnectionError):
            self._channel.send(FROM_PRELOAD.encode(message))

    def loaded(self) -> None:
        self._tell(Loaded())


def main() -> None:
    # Before the environment changes, behind which it finds the place for titles.
    descriptor, name, main, *functions = sys.argv[1:]
    setproctitle(f"trinity-bus: {name}")
    run = named(main)
    forked = serve(socket.socket(fileno=int(descriptor)), functions)
    while forked is not None:
        order, passed = forked
        setproctitle(f"trinity-bus: {order.name}")
        if isinstance(order, ForkCommand):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.argv = ["trinity-bus", *order.arguments, *map(str, passed)]
            run()
            return
        if order.main is not None:
            with importing():
                run = named(order.main)
        forked = serve(socket.socket(fileno=passed[0]), order.functions)


def serve(channel: socket.socket, functions: Sequence[str]) -> tuple[Fork, list[int]] | None:
    """Import, then fork; returns as :meth:`Preloaded.run` does."""
    # Ctrl-C is the owner's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with importing():
        _tell_log("importing")
        for function in functions:
            named(function)()
            _check_gpu_is_untouched(function)
    _tell_log("imported")
    # What is there now is there for good: no collection is to touch, and so copy, it. Nor is one worth its time now.
    gc.freeze()
    preloaded = Preloaded(channel)
    preloaded.loaded()
    return preloaded.run()


def _check_gpu_is_untouched(function: str) -> None:
    # Nothing that is forked from this process could use CUDA then.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(f"{function} has begun to use CUDA, which no fork of this process can use now")


def _tell_log(what: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} INFO    preload: {what}\n")


if __name__ == "__main__":
    main()
