"""Small objects under a URL of fsspec: ``s3://``, ``gs://``, ``file://`` and whatever else has a package for it.

An object is there whole or not at all, is read up to a size that its reader says, and may be written again. Who may
read and write is the store's affair: the libraries find credentials in their environment variables and files, and the
URL has none. They raise errors of many kinds, some of no common base, which are one kind here, that names the URL.

What is larger is cut into *pieces* whose names are what they hold, and one more object, written after them, that names
them. ``PatientStore`` writes such things, and removes what nothing names any more.

Failures: ``ObjectStoreError`` where the store is gone, refuses, or gives more than was asked for, and
``MissingObjectError`` where it has no such object. ``ConfigError`` where no installed package knows such URLs.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import batched, chain
from typing import Final

from trinity_bus import awake
from trinity_bus.errors import ConfigError, TrinityError

log = logging.getLogger(__name__)

PIECE: Final = 4 << 20
AT_ONCE: Final = 8  # pieces that are in memory, and on their way together
_PARTIAL: Final = ".partial"
_FIRST_PAUSE_S: Final = 0.5


class ObjectStoreError(TrinityError, OSError):
    """Objects cannot be read, written or listed. What was there is still there."""


class MissingObjectError(ObjectStoreError):
    """There is no such object, or no such bucket. To try again is of no use."""


def ensure_known(url: str) -> None:
    """ConfigError where nothing that is installed knows such URLs. Connects to nothing, and starts no thread."""
    try:
        from fsspec import get_filesystem_class

        get_filesystem_class(url.partition("://")[0])
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url} cannot be used: {error} (trinity-bus[objects] has s3fs, for s3://)") from error


class ObjectStore:
    """Objects by their names under ``url``. All methods may be called from any thread."""

    def __init__(self, url: str) -> None:
        ensure_known(url)
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.url = url
        with self._errors():
            self._files, self._path = url_to_fs(url)
        self._is_local = isinstance(self._files, LocalFileSystem)

    def read(self, sizes: Mapping[str, int]) -> dict[str, bytes]:
        """Return objects by name, none of them larger than ``sizes`` says."""
        with self._errors():
            found = self._files.cat_ranges(
                [self._of(name) for name in sizes], [0] * len(sizes), [size + 1 for size in sizes.values()]
            )
            for data in found:
                if isinstance(data, Exception):
                    raise data
        for (name, size), data in zip(sizes.items(), found, strict=True):
            if len(data) > size:
                raise ObjectStoreError(f"{self.url}/{name} has more than the {size} bytes that it may have")
        return dict(zip(sizes, found, strict=True))

    def write(self, objects: Mapping[str, bytes]) -> None:
        with self._errors():
            if not self._is_local:
                self._files.pipe({self._of(name): data for name, data in objects.items()})
                return
            # A file can be seen while it is written, and what a killed process leaves of one as well.
            for name, data in objects.items():
                path = self._of(name)
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(path + _PARTIAL, data)
                self._files.mv(path + _PARTIAL, path)

    def names(self, *folders: str) -> list[str]:
        """Return what is there, in these folders or anywhere, be it an object or the rest of a half-written one."""
        with self._errors():
            self._files.invalidate_cache()
            found = (path for folder in folders or ("",) for path in self._below(self._of(folder).rstrip("/")))
            return [path.removeprefix(self._path + "/") for path in found]

    def _below(self, path: str) -> list[str]:
        if not self._is_local:
            found: list[str] = self._files.find(path)
            return found
        # For ``find`` a folder that cannot be listed is an empty one.
        try:
            entries = self._files.ls(path, detail=True)
        except FileNotFoundError:
            return []
        names = ([one["name"]] if one["type"] != "directory" else self._below(one["name"]) for one in entries)
        return sorted(chain.from_iterable(names))

    def remove(self, names: list[str]) -> None:
        with self._errors():
            if names:
                self._files.rm([self._of(name) for name in names])

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = MissingObjectError if isinstance(error, FileNotFoundError) else ObjectStoreError
            raise kind(f"{self.url}: {type(error).__name__}: {error}") from error


class PatientStore(ObjectStore):
    """A store that may be too busy, or gone for a while, and what one process writes and removes there.

    ``tried``, ``put`` and ``send`` raise ObjectStoreError when it was gone for longer than ``outage_s``, and after
    ``close``.
    """

    def __init__(self, url: str, outage_s: float) -> None:
        super().__init__(url)
        self.written: set[str] = set()  # by this process, and not removed
        self._outage_s = outage_s
        self._closed = threading.Event()

    def tried[R](self, act: Callable[[], R]) -> R:
        deadline, pause_s = awake.now() + self._outage_s, _FIRST_PAUSE_S
        while not self.is_closed:
            try:
                return act()
            except MissingObjectError:
                raise
            except ObjectStoreError as error:
                if awake.now() + pause_s > deadline:
                    raise
                log.warning("tried again in %g s: %s", pause_s, error)
            awake.wait_in_thread(self._closed.wait, pause_s)
            pause_s *= 2
        raise ObjectStoreError(f"{self.url}: this process ends, and does no more there")

    def put(self, objects: Mapping[str, bytes]) -> None:
        self.tried(lambda: self.write(objects))
        self.written.update(objects)

    def send(self, pieces: Iterable[tuple[str, Callable[[], bytes]]]) -> None:
        """Write the pieces that this process has not written yet, whoever else may have."""
        lacking = (piece for piece in pieces if piece[0] not in self.written)
        for window in batched(lacking, AT_ONCE):
            self.put({name: content() for name, content in window})

    def keep_only(self, needed: AbstractSet[str], there: Iterable[str], naming: str) -> None:
        """Remove the rest of what is ``there``: first what is in the folder ``naming``, which names pieces."""
        old = sorted((self.written | set(there)) - needed)
        self.written &= needed
        try:
            self.remove([name for name in old if name.startswith(naming)])
            self.remove([name for name in old if not name.startswith(naming)])
        except ObjectStoreError as error:
            log.warning("what is old cannot be removed, which is tried again when more is written: %s", error)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """End what is being tried, soon."""
        self._closed.set()
