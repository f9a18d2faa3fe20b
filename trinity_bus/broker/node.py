"""Starting Kafka in a data folder: checks, formatting, the start-up archive, the process itself, readiness.

::

    (folder unlocked) --claim--> LOCKED --format, spawn--> STARTING --Metadata lists a live broker--> READY
                                    |                          |--process ends--> BrokerError (tail of its log)
                                    '--held by another--> DataFolderUnusableError

The lock is an open file that the Java process inherits: it is held exactly as long as someone can write to the folder.

The *start-up archive*, Kafka's classes as the Java runtime wants them in memory, more than halves the start. It belongs
to one Java runtime, wherever that is installed, and one set of jars; a runtime that finds another's simply does
without. An archive is code that nothing checks: only one that was made here is used, whose SHA-256 is kept among this
user's data, out of the cache, which somebody else may have given. So it is only ever an improvement, is made once by
:func:`prepare`, and a start never waits for it. It has the classes that a broker loaded between its start and its end,
so that broker is put to use meanwhile.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from rich.console import Console

from trinity_bus import awake
from trinity_bus.broker import java
from trinity_bus.broker.formatting import format_folder
from trinity_bus.broker.jars import digest, install, jar_folder
from trinity_bus.broker.layout import Folder, State, cache_dir, read_state, write_configuration, write_state, xdg
from trinity_bus.config import BrokerSettings
from trinity_bus.errors import BrokerError, ConfigError, DataFolderUnusableError, PortInUseError
from trinity_bus.runtime.plain_files import NotPlainError, append_plain, ensure_plain
from trinity_bus.runtime.ports import LOOPBACK, free_port, is_free
from trinity_bus.runtime.process import Child, start_time, tail

log = logging.getLogger(__name__)

_USUAL_PORT = 9092
_MIN_FREE_BYTES = 256 << 20
_POLL_S = 0.02
_PORT_ATTEMPTS = 3
# how long a broker that is part of a command is waited for: a killed command takes it along a moment later
_DYING_S = 2.0
_DEAD_S = 20.0  # how long the memory of one that has ended may take to be given back, and its lock with it


class Running(Protocol):
    def poll(self) -> int | None: ...


@contextlib.contextmanager
def claim(folder: Folder) -> Iterator[IO[bytes]]:
    """Create the data folder if need be, and lock it. Yields the open lock file, to be passed on to the Java process.

    DataFolderUnusableError: it cannot be written, is nearly full, holds something else, or another broker has it.
    """
    try:
        if folder.root.is_dir() and not folder.lock.exists() and any(folder.root.iterdir()):
            raise DataFolderUnusableError(
                f"{folder.root} is not empty and not a broker's data folder; "
                "set TRINITY_BUS_BROKER__DATA_DIR to another"
            )
        for path in (folder.root, folder.kafka, folder.logs, folder.tmp):
            path.mkdir(parents=True, exist_ok=True)
        lock = append_plain(folder.lock)
    except OSError as error:
        raise DataFolderUnusableError(
            f"the data folder {folder.root} cannot be used ({error.strerror}); "
            "set TRINITY_BUS_BROKER__DATA_DIR to another"
        ) from error
    with lock:
        if not _lock_in_time(folder, lock):
            state = read_state(folder)
            who = f"process {state.pid} on port {state.port}" if state else "another process"
            raise DataFolderUnusableError(
                f"a broker already runs on {folder.root} ({who}); use it, stop it (trinity-bus broker stop) or set "
                "TRINITY_BUS_BROKER__DATA_DIR to another folder"
            )
        try:
            # Kafka writes wherever links in it lead.
            ensure_plain(folder.root)
        except NotPlainError as error:
            raise DataFolderUnusableError(
                f"the data folder {folder.root} is not used: {error.filename}: {error.strerror}; remove that, or set "
                "TRINITY_BUS_BROKER__DATA_DIR to another folder"
            ) from error
        free = shutil.disk_usage(folder.root).free
        if free < _MIN_FREE_BYTES:
            raise DataFolderUnusableError(
                f"only {free >> 20} MiB are free for {folder.root}, and a broker needs {_MIN_FREE_BYTES >> 20}; "
                "make room or set TRINITY_BUS_BROKER__DATA_DIR to another disk"
            )
        yield lock


def _lock_in_time(folder: Folder, lock: IO[bytes]) -> bool:
    # Wait for a holder that has died or is about to, with the command that it was part of.
    began = awake.now()
    while not try_lock(lock):
        state = read_state(folder)
        limit_s = 0.0 if state is None or state.background else _DYING_S if state.alive else _DEAD_S
        if awake.now() - began >= limit_s:
            return False
        time.sleep(_POLL_S)
    return True


def try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def choose_port(settings: BrokerSettings, folder: Folder) -> int:
    outside = _outside_port(settings)
    if settings.port:
        if settings.port == outside:
            raise ConfigError(
                f"broker.port and broker.address both have port {outside}: Kafka wants one for each; leave broker.port "
                "unset"
            )
        if not is_free(settings.port):
            raise PortInUseError(
                f"port {settings.port} is in use by another process; stop that, "
                "or set TRINITY_BUS_BROKER__PORT to another (0 takes any free one)"
            )
        return settings.port
    # The one it had before first: clients that are waiting for it to come back look there.
    before = read_state(folder)
    usual = None if settings.port == 0 else _USUAL_PORT
    wanted = before.port if before else usual
    # A listener on the loopback interface and one at an address have a port each, or Kafka does not start.
    if wanted is not None and wanted != outside and is_free(wanted):
        return wanted
    return _free_port_but(outside)


def _outside_port(settings: BrokerSettings) -> int | None:
    return None if settings.address is None else int(settings.address.rpartition(":")[2])


def _free_port_but(*taken: int | None) -> int:
    while (port := free_port()) in taken:
        pass
    return port


def launch[P: Running](
    settings: BrokerSettings,
    folder: Folder,
    classpath: list[Path],
    options: Sequence[str],
    spawn: Callable[[list[str]], P],
) -> tuple[P, int]:
    """Write the settings, format the claimed folder if it is new, and start Kafka."""
    # ``options`` of the Java runtime read or write the start-up archive. Returns what ``spawn`` returned, and the port.
    port = choose_port(settings, folder)
    controller_port = _free_port_but(port, _outside_port(settings))
    write_configuration(
        folder, port=port, controller_port=controller_port, fsync=settings.fsync, address=settings.address
    )
    if not folder.formatted:
        format_folder(folder, classpath, settings.heap_mib)
    tmp = native_folder(settings, folder)
    # Native libraries of an earlier run that was killed.
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir()
    folder.jvm_log.unlink(missing_ok=True)
    folder.server_log.unlink(missing_ok=True)
    arguments = [folder.properties.name]
    command = java.command("kafka.Kafka", arguments, classpath, heap_mib=settings.heap_mib, options=options, tmp=tmp)
    return spawn(command), port


def wait_ready(process: Running, port: int, folder: Folder, timeout_s: float) -> None:
    """Wait until Kafka serves. Raises BrokerError or PortInUseError."""
    deadline = awake.now() + timeout_s
    while True:
        with contextlib.suppress(OSError):
            if serves(folder, port):
                return
        if (code := process.poll()) is not None:
            said = tail(folder.server_log, 200) + "\n" + tail(folder.jvm_log, 50)
            if "java.net.BindException" in said:
                raise PortInUseError(f"port {port} was taken by another process while Kafka started; start it again")
            raise BrokerError(
                f"Kafka ended with status {code} while it started: {reason(said)}. Its log: {folder.server_log}"
            )
        if awake.now() > deadline:
            raise BrokerError(
                f"Kafka is not ready after {timeout_s:g} s (TRINITY_BUS_BROKER__START_TIMEOUT_S). "
                f"Its log: {folder.server_log}"
            )
        time.sleep(_POLL_S)


def serves(folder: Folder, port: int) -> bool:
    """Whether the broker of this folder serves on this port; OSError where no Kafka broker does."""
    cluster = ask(port)
    return cluster.brokers > 0 and cluster.id == folder.cluster_id


def with_another_port[T](settings: BrokerSettings, start: Callable[[], T]) -> T:
    """Call ``start`` again where another process was faster to take the port, and the port need not be that one."""
    for _ in range(0 if settings.port else _PORT_ATTEMPTS - 1):
        with contextlib.suppress(PortInUseError):
            return start()
    return start()


def reason(log: str) -> str:
    # The line of a Kafka log that tells best why it ended.
    lines = [line for line in log.splitlines() if line.strip()]
    for mark in (" FATAL ", " ERROR ", "Exception", "Error"):
        found = [line for line in lines if mark in line]
        if found:
            return found[-1].strip()[:400]
    return lines[-1].strip()[:400] if lines else "it said nothing"


def runs_programs(folder: Path) -> bool:
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


def native_folder(settings: BrokerSettings, folder: Folder, runs: Callable[[Path], bool] = runs_programs) -> Path:
    """Return the folder for native libraries, made: of the data folder if that will do, else one in the cache."""
    # The data folder may lie on a file system that is mounted ``noexec``. Kafka would start there, and fail at the
    # first record that is packed with zstd or snappy.
    other = cache_dir(settings) / "native" / hashlib.sha256(bytes(folder.root)).hexdigest()[:16]
    for candidate in (folder.tmp, other):
        candidate.mkdir(parents=True, exist_ok=True)
        if runs(candidate):
            return candidate
    log.warning(
        "no program may be run from %s or %s: this broker will refuse records that are packed with zstd or snappy; set "
        "TRINITY_BUS_BROKER__CACHE_DIR to a folder on a disk that is not mounted noexec",
        folder.tmp,
        other,
    )
    return folder.tmp


_METADATA = 3
_VERSION = 4  # the oldest whose answer has all that is needed here; brokers of the last ten years know it
_MAX_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True)
class Cluster:
    # How many are alive. A broker opens its port a moment before the controller lets it serve: then there is none.
    brokers: int
    id: str | None  # as it was given when its first node was formatted


def ask(port: int, *, timeout_s: float = 1.0) -> Cluster:
    """Ask the broker on this port of the loopback interface, without a client; OSError where no Kafka broker is."""
    client_id = b"trinity-bus"
    body = struct.pack(">hhih", _METADATA, _VERSION, 1, len(client_id)) + client_id
    # No topics, and none to be created.
    body += struct.pack(">ib", 0, 0)
    with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 0 <= size <= _MAX_ANSWER:
            raise _no_broker(port)
        answer = _receive(connection, size)
    try:
        return _parse(answer)
    except (struct.error, UnicodeDecodeError) as error:
        raise _no_broker(port) from error


def _parse(answer: bytes) -> Cluster:
    # Metadata response, version 4: correlation id, throttle time, brokers (id, host, port, rack), cluster id, ...
    _correlation, _throttle, brokers = struct.unpack_from(">iii", answer)
    at = 12
    for _ in range(brokers):
        _host, at = _string(answer, at + 4)
        _rack, at = _string(answer, at + 4)
    cluster_id, _ = _string(answer, at)
    return Cluster(brokers, cluster_id)


def _string(answer: bytes, at: int) -> tuple[str | None, int]:
    (size,) = struct.unpack_from(">h", answer, at)
    if size < 0:
        return None, at + 2
    (content,) = struct.unpack_from(f"{size}s", answer, at + 2)
    return content.decode(), at + 2 + size


def _no_broker(port: int) -> OSError:
    return OSError(f"what listens on port {port} is no Kafka broker")


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("the connection was closed within an answer")
        received += chunk
    return bytes(received)


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
