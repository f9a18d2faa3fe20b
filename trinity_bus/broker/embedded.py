"""A broker for as long as this process lives (demo, tests, one machine's mesh), or in the background.

::

    STOPPED --start()--> RUNNING --stop()--> STOPPED
                            |----Kafka ends--> DIED (poll() tells; start() again recovers every acknowledged record)
                            '----this process dies, however--> Kafka is killed

One in the background outlives the command that starts it: ``trinity-bus broker start`` and its kin. The Java process
itself holds the lock of its data folder, so whether it lives is known without a process id; the id in
``broker.json``, with the time at which that process started, says only whom to stop.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from typing import Self

from rich.console import Console

from trinity_bus import awake
from trinity_bus.broker import java
from trinity_bus.broker.layout import Folder, State, data_dir, read_state
from trinity_bus.broker.node import serves, start_node, try_lock, wait_ready
from trinity_bus.config import BrokerSettings, KafkaSettings
from trinity_bus.errors import BrokerError, DataFolderUnusableError
from trinity_bus.runtime.plain_files import open_plain
from trinity_bus.runtime.process import Child

_STOP_GRACE_S = 20.0


class EmbeddedBroker:
    """Apache Kafka as a child process. Use it as a context manager, synchronous or asynchronous."""

    def __init__(self, settings: BrokerSettings | None = None, *, console: Console | None = None) -> None:
        self._settings = settings or BrokerSettings()
        self._console = console
        self._child: Child | None = None
        self._state: State | None = None
        self.folder = Folder(data_dir(self._settings))

    @property
    def bootstrap_servers(self) -> str:
        if self._state is None:
            raise BrokerError("the embedded broker has not been started")
        return self._state.bootstrap_servers

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def kafka_settings(self, base: KafkaSettings | None = None) -> KafkaSettings:
        return (base or KafkaSettings()).model_copy(update={"bootstrap_servers": self.bootstrap_servers})

    def poll(self) -> int | None:
        """Exit status of Kafka where it has ended; None while it runs, and before it was started."""
        return None if self._child is None else self._child.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until Kafka ends, or the limit; return its exit status, None where it runs or was never started."""
        return None if self._child is None else self._child.wait(timeout_s)

    def start(self) -> Self:
        """Start it and wait until it serves; where it has died, again on the same data, at the same port if it can."""
        if self._child is not None and self._child.poll() is None:
            return self
        self._child, self._state = start_node(
            self._settings, self.folder, self._spawn, background=False, console=self._console
        )
        return self

    def _spawn(self, command: list[str], lock: int) -> Child:
        folder = self.folder
        return Child(command, env=java.environment(), cwd=folder.root, output=folder.jvm_log, pass_fds=[lock])

    def stop(self) -> None:
        """Stop it: in order within a limit, else by force. Does nothing where it does not run."""
        if self._child is not None:
            self._child.stop(_STOP_GRACE_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)


_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    folder: Folder
    state: State | None  # the process that serves the folder now; None where none does
    ready: bool  # whether it answers

    @property
    def running(self) -> bool:
        return self.state is not None


def status(settings: BrokerSettings) -> BrokerStatus:
    """Look at the broker of the configured data folder, without waiting for anything."""
    folder = Folder(data_dir(settings))
    state = read_state(folder)
    if state is None or not _locked(folder) or not state.alive:
        return BrokerStatus(folder, None, ready=False)
    try:
        ready = serves(folder, state.port)
    except OSError:
        ready = False
    return BrokerStatus(folder, state, ready)


def start(settings: BrokerSettings, *, console: Console | None = None) -> State:
    """Start a broker that outlives this process, and wait until it serves. Where one runs already, return that."""
    before = status(settings)
    if before.state is not None:
        wait_ready(_Other(before.state), before.state.port, before.folder, settings.start_timeout_s)
        return before.state
    process, state = start_node(
        settings, before.folder, partial(_spawn, before.folder), background=True, console=console
    )
    # It is meant to be left running, which Popen would warn of.
    process.returncode = 0
    return state


@dataclass(frozen=True, slots=True)
class _Other:
    state: State

    def poll(self) -> int | None:
        return None if self.state.alive else -1


def _spawn(folder: Folder, command: list[str], lock: int) -> subprocess.Popen[bytes]:
    with folder.jvm_log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603  our own command line, no shell
            command,
            cwd=folder.root,
            env=java.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
            start_new_session=True,
        )


def stop(settings: BrokerSettings) -> bool:
    """Stop the background broker of the data folder: in order within a limit, else by force. False where none ran.

    DataFolderUnusableError: what serves the folder belongs to a process that still lives, such as a demo.
    """
    folder = Folder(data_dir(settings))
    state = status(settings).state
    if state is None:
        return False
    if not state.background:
        raise DataFolderUnusableError(
            f"the broker on {folder.root} is part of a running command; stop that command (Ctrl-C)"
        )
    for number, limit_s in ((signal.SIGTERM, _STOP_GRACE_S), (signal.SIGKILL, _STOP_GRACE_S)):
        _signal(state, number)
        deadline = awake.now() + limit_s
        while awake.now() < deadline:
            if not state.alive and not _locked(folder):
                return True
            time.sleep(_POLL_S)
    raise BrokerError(f"process {state.pid} cannot be stopped")


def resolve_bootstrap(
    kafka: KafkaSettings, broker: BrokerSettings, *, start_if_none: bool = False, console: Console | None = None
) -> KafkaSettings:
    """Return the Kafka settings to connect with: as configured, else the background broker's. Raises BrokerError."""
    if kafka.bootstrap_servers is not None:
        return kafka
    found = status(broker).state
    if found is None:
        if not start_if_none:
            raise BrokerError(
                "no broker: start one (trinity-bus broker start) or name yours (TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS)"
            )
        found = start(broker, console=console)
    return kafka.model_copy(update={"bootstrap_servers": found.bootstrap_servers})


def _locked(folder: Folder) -> bool:
    try:
        file = open_plain(folder.lock)
    except (FileNotFoundError, NotADirectoryError):
        return False
    with file:
        return not try_lock(file)


def _signal(state: State, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        # The descriptor is of whatever process has the id now; only if that is the one meant is it signalled.
        descriptor = os.pidfd_open(state.pid)
        try:
            if state.alive:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
