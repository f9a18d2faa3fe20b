"""The jars of Apache Kafka: which, where they are kept, and how they get there.

``kafka.lock`` beside this file names each jar and its SHA-256. They are kept in a folder of the cache that belongs to
that very lock file. Each start compares every jar with it, because a download that was cut off leaves a file that looks
complete; what is missing or wrong is fetched again, next to its place, and moved there only when it is right.

Downloads use the Python resolver of jgo with this machine's settings for it; a copy in the local Maven repository is
taken instead if it is the right one.
"""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trinity_bus.errors import BrokerError, DataFolderUnusableError
from trinity_bus.runtime.plain_files import open_plain

LOCK_FILE = Path(__file__).with_name("kafka.lock")
_ATTEMPTS = 3
_WORKERS = 8
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def read_lock(path: Path = LOCK_FILE) -> list[Jar]:
    """Return the jars that the lock file names, in the order of the class path. Raises BrokerError."""
    jars = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        coordinate, _, sha256 = line.partition(" ")
        parts = coordinate.split(":")
        if len(parts) != 3 or len(sha256) != 64:
            raise BrokerError(f"{path}:{number} is not 'group:artifact:version sha256'; create the file again")
        group, artifact, version = parts
        jars.append(Jar(group, artifact, version, sha256))
    return jars


def jar_folder(cache: Path, path: Path = LOCK_FILE) -> Path:
    return cache / f"kafka-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def install(cache: Path, *, console: Console | None = None, lock: Path = LOCK_FILE) -> list[Path]:
    """Make sure that every jar is there and is the right one; return the class path.

    BrokerError: a jar cannot be had. DataFolderUnusableError: the cache cannot be written.
    """
    jars = read_lock(lock)
    folder = jar_folder(cache, lock)
    if _wrong(folder, jars):
        with _exclusive(folder):
            # Another process may have fetched them while this one waited.
            wrong = _wrong(folder, jars)
            if wrong:
                # A start-up archive is of the very files that it was made from.
                for archive in folder.glob("*.aot"):
                    archive.unlink()
                _fetch_all(folder, wrong, console or Console(stderr=True))
    return [folder / jar.filename for jar in jars]


def _wrong(folder: Path, jars: Sequence[Jar]) -> list[Jar]:
    with ThreadPoolExecutor(2) as pool:
        right = pool.map(lambda jar: digest(folder / jar.filename) == jar.sha256, jars)
        return [jar for jar, is_right in zip(jars, right, strict=True) if not is_right]


def digest(path: Path) -> str | None:
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def unwritable(folder: Path, error: OSError) -> DataFolderUnusableError:
    return DataFolderUnusableError(
        f"the cache folder {folder} cannot be written ({error.strerror}); set TRINITY_BUS_BROKER__CACHE_DIR to another"
    )


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise unwritable(folder, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_all(folder: Path, jars: Sequence[Jar], console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as staging,
        Progress(*columns, console=console, transient=not console.is_terminal) as progress,
        ThreadPoolExecutor(min(_WORKERS, len(jars))) as pool,
    ):
        if not console.is_terminal:
            console.print(f"Downloading Apache Kafka: {len(jars)} jars to {folder}", soft_wrap=True)
        task = progress.add_task("Downloading Apache Kafka", total=len(jars))
        pending = [pool.submit(_fetch, jar, folder, Path(staging)) for jar in jars]
        try:
            for done in as_completed(pending):
                done.result()
                progress.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(jar: Jar, folder: Path, staging: Path) -> None:
    found: list[str] = []
    for attempt in range(_ATTEMPTS):
        # A folder for each attempt: the resolver takes whatever lies in its cache for complete.
        source = _local_copy(jar) or _download(jar, staging / f"{jar.artifact}-{attempt}", found)
        if source is None:
            continue
        candidate = staging / jar.filename
        shutil.copyfile(source, candidate)
        actual = digest(candidate)
        if actual == jar.sha256:
            candidate.replace(folder / jar.filename)
            return
        found.append(f"its SHA-256 is {actual}, the lock file says {jar.sha256}")
    raise BrokerError(
        f"cannot get {jar}: {found[-1]}. Check the network, "
        "or put the jar into your Maven repository (~/.m2/repository)"
    )


def _local_copy(jar: Jar) -> Path | None:
    try:
        from jgo.constants import default_maven_repo
    except ImportError as error:
        raise BrokerError(
            "the embedded broker needs the packages of an extra: pip install 'trinity-bus[broker]'"
        ) from error
    place = Path(default_maven_repo(), *jar.group.split("."), jar.artifact, jar.version, jar.filename)
    return place if digest(place) == jar.sha256 else None


def maven(cache: Path) -> Any:
    """Return jgo's context with this machine's settings for it, whose downloads go to a folder."""
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext, PythonResolver

    repositories = GlobalSettings.load().repositories or None
    return MavenContext(PythonResolver(), repo_cache=cache, remote_repos=repositories, timeout=_TIMEOUT_S)


def _download(jar: Jar, cache: Path, found: list[str]) -> Path | None:
    import requests

    artifact = maven(cache).project(jar.group, jar.artifact).at_version(jar.version).artifact()
    try:
        return Path(artifact.resolve())
    except (requests.RequestException, RuntimeError, OSError) as error:
        # jgo raises a bare RuntimeError where no repository has the file.
        found.append(" ".join(str(error).split())[:300])
        return None
