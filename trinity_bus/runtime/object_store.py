"""Small objects under a URL of fsspec: ``s3://``, ``gs://``, ``file://`` and whatever else has a package for it.

An object is there whole or not at all, is read up to a size that its reader says, and may be written again. Who may
read and write is the store's affair: the libraries find credentials in their environment variables and files, and the
URL has none. They raise errors of many kinds, some of no common base, which are one kind here, that names the URL.

Failures: ``ObjectStoreError`` where the store is gone, refuses, gives more than was asked for, or has no such object.
``ConfigError`` where no installed package knows such URLs.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from trinity_bus.errors import ConfigError, TrinityError

_PARTIAL: Final = ".partial"


class ObjectStoreError(TrinityError, OSError):
    """Objects cannot be read, written or listed. What was there is still there."""


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

    def names(self) -> list[str]:
        """Return what is there, however deep, be it an object or the rest of one that was being written."""
        with self._errors():
            self._files.invalidate_cache()
            return [path.removeprefix(self._path + "/") for path in self._files.find(self._path)]

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
            raise ObjectStoreError(f"{self.url}: {type(error).__name__}: {error}") from error
