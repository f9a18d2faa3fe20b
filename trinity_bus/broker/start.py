"""A start of Kafka from settings to readiness: what a broker in the background and an embedded one have in common."""

from collections.abc import Callable
from typing import Protocol

from rich.console import Console

from trinity_bus.broker.archive import archive_options
from trinity_bus.broker.jars import install
from trinity_bus.broker.layout import Folder, State, cache_dir, write_state
from trinity_bus.broker.node import Running, claim, launch, wait_ready, with_another_port
from trinity_bus.config import BrokerSettings
from trinity_bus.runtime.process import start_time


class _Spawned(Running, Protocol):
    @property
    def pid(self) -> int: ...

    def kill(self) -> object: ...

    def wait(self) -> object: ...


def start_node[P: _Spawned](
    settings: BrokerSettings,
    folder: Folder,
    spawn: Callable[[list[str], int], P],
    *,
    background: bool,
    console: Console | None,
) -> tuple[P, State]:
    """Install and start Kafka, and wait until it serves; BrokerError says why it cannot, and what to do.

    ``spawn`` runs a command, which keeps the descriptor of the folder's lock.
    """
    cache = cache_dir(settings)
    classpath = install(cache, console=console)

    def start() -> tuple[P, State]:
        with claim(folder) as lock:
            process, port = launch(
                settings, folder, classpath, archive_options(cache), lambda command: spawn(command, lock.fileno())
            )
        try:
            state = State(process.pid, start_time(process.pid) or 0, port, background=background)
            write_state(folder, state)
            wait_ready(process, port, folder, settings.start_timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process, state

    return with_another_port(settings, start)
