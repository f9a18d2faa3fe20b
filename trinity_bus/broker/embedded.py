"""A broker for as long as this process lives: demo, tests, one machine's mesh.

::

    STOPPED --start()--> RUNNING --stop()--> STOPPED
                            |----Kafka ends--> DIED (poll() tells; start() again recovers every acknowledged record)
                            '----this process dies, however--> Kafka is killed
"""

import asyncio
from typing import Self

from rich.console import Console

from trinity_bus.broker import java
from trinity_bus.broker.layout import Folder, State, data_dir
from trinity_bus.broker.start import start_node
from trinity_bus.config import BrokerSettings, KafkaSettings
from trinity_bus.errors import BrokerError
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
