"""``python -m trinity_bus.runtime.preload_main NAME MAIN FUNCTION... SOCKET``: imports, then forks commands.

See :mod:`trinity_bus.runtime.preload`. Each command is forked with a guard of its own between, as one that is started
anew has (:mod:`trinity_bus.runtime.guard`): the guard's owner is this process, and this process has a guard itself.

Failures: a function raises: this process ends with the traceback, and what waits is told as killed. It is killed: the
guards see it, and end their families.
"""

import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from setproctitle import setproctitle

from trinity_bus.runtime.forking import ChildExited, ChildForked, Forking
from trinity_bus.runtime.guard import Guard
from trinity_bus.runtime.memory import importing
from trinity_bus.runtime.preload import FROM_PRELOAD, TO_PRELOAD, Fork, Loaded, read_environment
from trinity_bus.runtime.process import has_ended, kill_session


def named(reference: str) -> Callable[[], Any]:
    """Return a function that this process's own command line names, as ``module:function``."""
    module, _, function = reference.partition(":")
    found: Callable[[], Any] = getattr(importlib.import_module(module), function)
    return found


class Preloaded(Forking[Fork]):
    """Forks commands, each under a guard, which is the child."""

    def _fork(self, order: Fork, passed: Sequence[int]) -> bool:
        output, environment, *own = passed
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
            for descriptor in own:
                os.close(descriptor)
            setproctitle(f"guard of trinity-bus: {order.name}")
            os.write(write_end, str(supervising.command).encode())
            os.close(write_end)
            supervising.run()
        for descriptor in (write_end, *passed):
            os.close(descriptor)
        self._children[order.serial] = guard
        with os.fdopen(read_end, "rb") as file:
            said = file.read()
        if said:
            self.tell(ChildForked(order.serial, int(said)))
        return False

    def _become_child(self, output: int, environment: int) -> None:
        # Let go of what is the forking process's, and take what is the command's.
        os.setsid()
        self._let_go()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, place)
        os.close(nothing)
        os.close(output)
        os.environ.clear()
        os.environ.update(read_environment(environment))

    def _reap(self) -> None:
        for serial, guard in list(self._children.items()):
            if has_ended(guard):
                kill_session(guard)
                _, status = os.waitpid(guard, 0)
                del self._children[serial]
                self.tell(ChildExited(serial, os.waitstatus_to_exitcode(status)))


def main() -> None:
    """Import, then fork until the owner is gone; in a forked process, be the command or branch that was ordered."""
    # Before the environment changes, behind which it finds the place for titles.
    _, name, command, *functions, descriptor = sys.argv
    setproctitle(f"trinity-bus: {name}")
    run = named(command)
    # Ctrl-C is the owner's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with importing():
        _tell_log("importing")
        for reference in functions:
            if ":" in reference:
                named(reference)()
            else:
                importlib.import_module(reference)
            _check_gpu_is_untouched(reference)
    _tell_log("imported")
    # What is there now is there for good: no collection is to touch, and so copy, it. Nor is one worth its time now.
    gc.freeze()
    preloaded = Preloaded(socket.socket(fileno=int(descriptor)), TO_PRELOAD, FROM_PRELOAD)
    preloaded.tell(Loaded())
    if (forked := preloaded.run()) is None:
        return
    order, (_, _, *passed) = forked
    setproctitle(f"trinity-bus: {order.name}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["trinity-bus", *order.arguments, *map(str, passed)]
    if order.is_branch:
        main()
    else:
        run()


def _check_gpu_is_untouched(function: str) -> None:
    # Nothing that is forked from this process could use CUDA then.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(f"{function} has begun to use CUDA, which no fork of this process can use now")


def _tell_log(what: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} INFO    preload: {what}\n")


if __name__ == "__main__":
    main()
