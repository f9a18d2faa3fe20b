"""``python -m trinity_bus.runners.fork_server_main SOCKET``: the process that forks runners.

It has one thread and imports everything that runners need, so that a new one is there in milliseconds and shares its
memory. It runs none of a workflow itself, apart from importing it.

::

    CONFINING --> LOADING --Loaded--> FORKING --the explorer closes its socket, or dies--> runners killed, ended
        '------------'--Broken--> ended

Whatever a runner starts becomes the runner's own child when it is orphaned, and the fork server's when the runner is
dead (both are "child subreapers"). So a child of the fork server that is no runner is left over from a dead one, and is
killed.

Failures: the fork server dies: the kernel kills the runners (parent-death signal), and the guard that it runs under
(:mod:`trinity_bus.runtime.guard`) kills what they had started. A fork fails: that runner is told as dead.
"""

import contextlib
import faulthandler
import importlib
import logging
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from trinity_bus.chat import Tokenizer
from trinity_bus.chat.encoding import without_torch
from trinity_bus.rollout.registry import REGISTRY, load_installed
from trinity_bus.runners import control
from trinity_bus.runners.confinement import confine
from trinity_bus.runners.runner_main import run_runner
from trinity_bus.runtime.forking import ChildExited, ChildForked, Forking
from trinity_bus.runtime.guard import PR_SET_CHILD_SUBREAPER, descendants, die_with_parent, prctl
from trinity_bus.runtime.memory import freeze_gc, importing
from trinity_bus.telemetry.logs import console

_log = logging.getLogger(__name__)

# Where the machine runs out of memory, the kernel is to take a runner rather than the engine.
OOM_SCORE = 500


def load(order: control.LoadWorkflows) -> Tokenizer:
    with importing():
        load_installed()
        for module in order.modules:
            importlib.import_module(module)
        module, _, function = order.tokenizer.partition(":")
        load_it = getattr(importlib.import_module(module), function)
        tokenizer: Tokenizer = load_it(order.model_path, order.template_options, order.writing)
    return tokenizer


class RunnerForking(Forking[control.LoadWorkflows | control.ForkRunner]):
    def __init__(self, channel: socket.socket, order: control.LoadWorkflows, tokenizer: Tokenizer) -> None:
        super().__init__(channel, control.TO_FORK_SERVER, control.FROM_FORK_SERVER)
        self._load = order
        self._tokenizer = tokenizer
        prctl(PR_SET_CHILD_SUBREAPER, 1)

    def _fork(self, order: control.LoadWorkflows | control.ForkRunner, passed: Sequence[int]) -> bool:
        if not isinstance(order, control.ForkRunner):
            raise TypeError("workflows are loaded already")
        fork_server = os.getpid()
        with socket.socket(fileno=passed[0]) as link:
            try:
                pid = os.fork()
            except OSError as error:
                self.tell(ChildExited(order.serial, 1, f"{error.strerror}"))
                return False
            if pid == 0:
                self._become_runner(fork_server, order.serial, link)
        self._children[order.serial] = pid
        self.tell(ChildForked(order.serial, pid))
        return False

    def _become_runner(self, fork_server: int, serial: int, link: socket.socket) -> NoReturn:
        code = 1
        try:
            die_with_parent(fork_server)
            self._let_go()
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # Python's own generator is seeded anew in a forked process; this one is not.
            np.random.seed()  # noqa: NPY002 (workflows may use it)
            run_runner(link, serial, self._tokenizer, self._load)
            code = 0
        except BaseException:  # noqa: BLE001 (whatever it is, this process must not go on as the fork server)
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        dead = []
        serials = {pid: serial for serial, pid in self._children.items()}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if (serial := serials.get(pid)) is not None:
                    del self._children[serial]
                    dead.append(ChildExited(serial, os.waitstatus_to_exitcode(status)))
        if dead:
            self._sweep()
        for message in dead:
            self.tell(message)

    def _sweep(self) -> None:
        # When these die, their children become the fork server's in turn.
        while left := descendants(os.getpid(), without=set(self._children.values())):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                # Those that are no children of the fork server yet are collected when they have become it.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def end(self) -> None:
        self._children.clear()
        self._sweep()


def preload() -> None:
    """Import what every tokenizer needs, so that several fork servers can be forked from this process."""
    with without_torch():
        importlib.import_module("transformers.models.auto.tokenization_auto")


def main() -> None:
    console(template="%(asctime)s %(levelname)-7s runner: %(message)s")
    faulthandler.enable()
    # Ctrl-C and SIGTERM to a whole group are the explorer's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An explorer may be gone before anything is loaded, or amid a message: nobody is left to be told.
    with socket.socket(fileno=int(sys.argv[1])) as channel, contextlib.suppress(ConnectionError):
        serve(channel)


def serve(channel: socket.socket) -> None:
    """Load what the explorer asks for, then fork runners until it is gone, which may be a ``ConnectionError``."""
    datagram = channel.recv(control.TO_FORK_SERVER.limit)
    # Nothing: the explorer is gone, before it was ever there perhaps.
    order = control.TO_FORK_SERVER.decode(datagram) if datagram else None
    if not isinstance(order, control.LoadWorkflows):
        return
    guard = os.getppid()
    try:
        confine(order.user)
        # The kernel forgets it when a process becomes another user.
        die_with_parent(guard)
        tokenizer = load(order)
    except Exception as error:  # noqa: BLE001 (importing can raise anything; the explorer says it and ends)
        channel.send(control.FROM_FORK_SERVER.encode(control.LoadFailed(f"{type(error).__name__}: {error}"[:4000])))
        return
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 (only their number)
    if threads > 1:
        _log.warning("importing workflows started %d threads; no runner will have them", threads - 1)
    # What is there now is there for good: no collection is to touch, and so copy, it.
    freeze_gc()
    fork_server = RunnerForking(channel, order, tokenizer)
    try:
        fork_server.tell(control.WorkflowsLoaded(sorted(REGISTRY)))
        fork_server.run()
    finally:
        fork_server.end()


if __name__ == "__main__":
    main()
