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
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import numpy as np

from trinity_bus.rollout import REGISTRY, Tokenizer
from trinity_bus.rollout.registry import load_installed
from trinity_bus.rollout.tokenizer import without_torch
from trinity_bus.runners import control
from trinity_bus.runners.confinement import confine
from trinity_bus.runners.runner_main import run_runner
from trinity_bus.runtime.guard import PR_SET_CHILD_SUBREAPER, HeardSignals, descendants, die_with_parent, prctl
from trinity_bus.runtime.heap import freeze_gc, importing
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
        tokenizer: Tokenizer = load_it(
            order.model_path,
            order.template_options,
            max_tokens=order.max_tokens,
            parse_special_tokens=order.parse_special_tokens,
            renderer=order.renderer,
        )
    return tokenizer


class Forker:
    def __init__(self, channel: socket.socket, order: control.LoadWorkflows, tokenizer: Tokenizer) -> None:
        self._channel = channel
        self._order = order
        self._tokenizer = tokenizer
        self._runners: dict[int, int] = {}  # process id to serial
        self._ended = HeardSignals(signal.SIGCHLD)
        prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._ended.fileno() in ready:
                self._ended.take()
                self._reap()
            if self._channel.fileno() in ready and not self._handle():
                return

    def _handle(self) -> bool:
        """Carry out one order; False when there will be none any more."""
        datagram, descriptors, _, _ = socket.recv_fds(self._channel, control.TO_FORK_SERVER.limit, 1)
        if not datagram:
            return False
        match control.TO_FORK_SERVER.decode(datagram):
            case control.ForkRunner(serial):
                with socket.socket(fileno=descriptors[0]) as link:
                    self._fork(serial, link)
            case control.SignalRunner(serial, number):
                # Not yet reaped, so the process id is still its own.
                for pid, known in self._runners.items():
                    if known == serial:
                        os.kill(pid, number)
            case other:
                raise TypeError(f"no order: {other}")
        return True

    def _fork(self, serial: int, link: socket.socket) -> None:
        fork_server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(control.RunnerExited(serial, f"could not be started: {error.strerror}"))
            return
        if pid == 0:
            self._become_runner(fork_server, serial, link)
        self._runners[pid] = serial
        self._tell(control.RunnerForked(serial, pid))

    def _become_runner(self, fork_server: int, serial: int, link: socket.socket) -> NoReturn:
        code = 1
        try:
            die_with_parent(fork_server)
            self._channel.close()
            self._ended.close()
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # Python's own generator is seeded anew in a forked process; this one is not.
            np.random.seed()  # noqa: NPY002 (workflows may use it)
            run_runner(link, serial, self._tokenizer, self._order)
            code = 0
        except BaseException:  # noqa: BLE001 (whatever it is, this process must not go on as the fork server)
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        dead: list[control.FromForkServer] = []
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if (serial := self._runners.pop(pid, None)) is not None:
                    dead.append(control.RunnerExited(serial, how_it_ended(status)))
        if dead:
            self._sweep()
        for message in dead:
            self._tell(message)

    def _sweep(self) -> None:
        # When these die, their children become the fork server's in turn.
        while left := descendants(os.getpid(), without=self._runners):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                # Those that are no children of the fork server yet are collected when they have become it.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _tell(self, message: control.FromForkServer) -> None:
        self._channel.send(control.FROM_FORK_SERVER.encode(message))

    def end(self) -> None:
        self._runners.clear()
        self._sweep()


def how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"was killed by signal {number} ({signal.Signals(number).name})"
        except ValueError:
            return f"was killed by signal {number}"
    return f"exited with status {os.waitstatus_to_exitcode(status)}"


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
    fork_server = Forker(channel, order, tokenizer)
    try:
        channel.send(control.FROM_FORK_SERVER.encode(control.WorkflowsLoaded(sorted(REGISTRY))))
        fork_server.run()
    finally:
        fork_server.end()


if __name__ == "__main__":
    main()
