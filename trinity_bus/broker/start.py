"""A start of Kafka from settings to readiness: what a broker in the background and an embedded one have in common.

The *start-up archive*, Kafka's classes as the Java runtime wants them in memory, more than halves the start. It belongs
to one Java runtime, wherever that is installed, and one set of jars; a runtime that finds another's simply does
without. An archive is code that nothing checks: only one that was made here is used, whose SHA-256 is kept among this
user's data, out of the cache, which somebody else may have given. So it is only ever an improvement, is made once by
:func:`prepare`, and a start never waits for it. It has the classes that a broker loaded between its start and its end,
so that broker is put to use meanwhile.
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rich.console import Console

from trinity_bus.broker import java
from trinity_bus.broker.jars import digest, install, jar_folder
from trinity_bus.broker.layout import Folder, State, cache_dir, write_state, xdg
from trinity_bus.broker.node import Running, claim, launch, wait_ready, with_another_port
from trinity_bus.config import BrokerSettings
from trinity_bus.errors import BrokerError
from trinity_bus.runtime.ports import LOOPBACK
from trinity_bus.runtime.process import Child, start_time

_LIMIT_S = 120.0
_KEPT = 3


def archive_path(cache: Path) -> Path:
    home = java.java().resolve().parent.parent
    identity = f"{(home / 'release').read_text(encoding='utf-8')} {(home / 'lib' / 'modules').stat().st_size}"
    return jar_folder(cache) / f"java-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.aot"


def is_ours(path: Path) -> bool:
    sha256 = digest(path)
    return sha256 is not None and (_made_here() / sha256).exists()


def archive_options(cache: Path) -> list[str]:
    """Return the Java options that use the archive; none where there is none that was made here."""
    path = archive_path(cache)
    return [f"-XX:AOTCache={path}"] if is_ours(path) else []


def _made_here() -> Path:
    # An empty file for each archive that was made here has its digest as its name.
    return xdg("XDG_DATA_HOME", ".local/share") / "trinity-bus" / "archives"


def _remember(made: Path) -> None:
    _made_here().mkdir(parents=True, exist_ok=True)
    (_made_here() / str(digest(made))).touch()


def prepare(settings: BrokerSettings, use: Callable[[str], None], *, console: Console | None = None) -> None:
    """Download and check the jars, and make the start-up archive. Does nothing that has been done before.

    ``use`` does with the broker at an address what meshes do with theirs.

    Raises:
        BrokerError: The jars cannot be had, or Kafka does not start.
    """
    console = console or Console(stderr=True)
    cache = cache_dir(settings)
    classpath = install(cache, console=console)
    path = archive_path(cache)
    if is_ours(path):
        return
    with (
        console.status("Preparing the broker's start-up archive"),
        tempfile.TemporaryDirectory(prefix=".prepare-", dir=path.parent) as scratch,
    ):
        folder = Folder(Path(scratch) / "broker")
        made = Path(scratch) / "made.aot"
        trial = settings.model_copy(update={"port": 0, "address": None})
        with claim(folder):
            process, port = launch(
                trial,
                folder,
                classpath,
                [f"-XX:AOTCacheOutput={made}"],
                lambda command: Child(command, env=java.environment(), cwd=folder.root, output=folder.jvm_log),
            )
            with process:
                wait_ready(process, port, folder, settings.start_timeout_s)
                use(f"{LOOPBACK}:{port}")
                # The runtime writes the archive when it ends.
                process.stop(_LIMIT_S)
        if not made.exists():
            raise BrokerError("the Java runtime wrote no start-up archive; the broker works without, more slowly")
        _remember(made)
        made.replace(path)
    archives = sorted(path.parent.glob("java-*.aot"), key=lambda archive: archive.stat().st_mtime)
    for old in archives[:-_KEPT]:
        old.unlink()


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
