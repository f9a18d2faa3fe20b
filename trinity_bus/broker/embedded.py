"""A broker for as long as this process lives: demo, tests, one machine's mesh.

::

    STOPPED --start()--> RUNNING --stop()--> STOPPED
                            |----Kafka ends--> DIED (poll() tells; start() again recovers every acknowledged record)
                            '----this process dies, however--> Kafka is killed
"""

import asyncio
from pathlib import Path
from typing import Self

from rich.console import Console

from trinity_bus.broker import java
from trinity_bus.broker.archive import archive_options
from trinity_bus.broker.errors import BrokerError
from trinity_bus.broker.jars import install
from trinity_bus.broker.layout import Folder, State, cache_dir, data_dir, write_state
from trinity_bus.broker.node import claim, launch, wait_ready, with_another_port
from trinity_bus.config import BrokerSettings, KafkaSettings
from trinity_bus.runtime.process import Child, start_time

_STOP_GRACE_S = 20.0


class EmbeddedBroker:
    """Apache Kafka as a child process. Use it as a context manager, synchronous or asynchronous."""

    def __init__(self, settings: BrokerSettings | None = None, *, console: Console | None = None) -> None:
        self._settings = settings or BrokerSettings()
        self._console = console
        self._child: Child | None = None
        self._port = 0
        self.folder = Folder(data_dir(self._settings))

    @property
    def bootstrap_servers(self) -> str:
        if self._child is None:
            raise BrokerError("the embedded broker has not been started")
        return State(self._child.pid, 0, self._port, background=False).bootstrap_servers

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
        """Start it and wait until it serves.

        Where it has died, this starts it again on the same data, and at the same port if that is still free.

        Raises:
            BrokerError: It cannot start; the message says why and what to do.
        """
        if self._child is not None and self._child.poll() is None:
            return self
        cache = cache_dir(self._settings)
        classpath = install(cache, console=self._console)
        with_another_port(self._settings, lambda: self._start(classpath, archive_options(cache)))
        return self

    def _start(self, classpath: list[Path], options: list[str]) -> None:
        folder = self.folder
        with claim(folder) as lock:
            self._child, self._port = launch(
                self._settings,
                folder,
                classpath,
                options,
                lambda command: Child(
                    command, env=java.environment(), cwd=folder.root, output=folder.jvm_log, pass_fds=[lock.fileno()]
                ),
            )
        try:
            pid = self._child.pid
            write_state(folder, State(pid, start_time(pid) or 0, self._port, background=False))
            wait_ready(self._child, self._port, folder, self._settings.start_timeout_s)
        except BaseException:
            self._child.kill()
            raise

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
