"""The start-up archive: Kafka's classes as the Java runtime wants them in memory, which more than halves its start.

It belongs to one Java runtime and one set of jars; a runtime that finds another's simply does without. So it is only
ever an improvement, is made once by :func:`prepare`, and a start never waits for it.
"""

import hashlib
import tempfile
from pathlib import Path

from rich.console import Console

from trinity_bus.broker import java
from trinity_bus.broker.errors import BrokerError
from trinity_bus.broker.folders import cache_dir
from trinity_bus.broker.jars import install, jar_folder
from trinity_bus.broker.layout import Folder
from trinity_bus.broker.node import claim, launch, wait_ready
from trinity_bus.config import BrokerSettings
from trinity_bus.runtime.process import Child

_LIMIT_S = 120.0
_KEPT = 3


def archive_path(cache: Path) -> Path:
    """Where the archive of this Java runtime and these jars is, if there is one."""
    runtime = java.java().resolve().parent.parent / "lib" / "modules"
    about = runtime.stat()
    identity = f"{runtime} {about.st_size} {about.st_mtime_ns}"
    return jar_folder(cache) / f"start-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.aot"


def archive_options(cache: Path) -> list[str]:
    """Return the Java options that use the archive; none where there is no archive."""
    path = archive_path(cache)
    return [f"-XX:AOTCache={path}"] if path.exists() else []


def prepare(settings: BrokerSettings, *, console: Console | None = None) -> None:
    """Download and check the jars, and make the start-up archive. Does nothing that has been done before.

    Args:
        settings: The cache folder, the heap.
        console: Where progress goes. Unset: standard error.

    Raises:
        BrokerError: The jars cannot be had, or Kafka does not start.
    """
    console = console or Console(stderr=True)
    cache = cache_dir(settings)
    classpath = install(cache, console=console)
    path = archive_path(cache)
    if path.exists():
        return
    with (
        console.status("Preparing the broker's start-up archive"),
        tempfile.TemporaryDirectory(prefix=".prepare-", dir=path.parent) as scratch,
    ):
        folder = Folder(Path(scratch) / "broker")
        made = Path(scratch) / "made.aot"
        trial = settings.model_copy(update={"port": 0})
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
                # The runtime writes the archive when it ends.
                process.stop(_LIMIT_S)
        if not made.exists():
            raise BrokerError("the Java runtime wrote no start-up archive; the broker works without, more slowly")
        made.replace(path)
    archives = sorted(path.parent.glob("start-*.aot"), key=lambda archive: archive.stat().st_mtime)
    for old in archives[:-_KEPT]:
        old.unlink()
