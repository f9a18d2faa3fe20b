"""Files in folders that somebody else may have made: read and written without following a link out of them.

A folder that was handed on can have links to files of whoever opens it, pipes that never answer, devices that never
end, and files of which their owner changes what was just looked at. ``NotPlainError`` names the one that is at fault;
it is an ``OSError``, so whoever reads files handles it as one that cannot be read.
"""

import errno
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trinity_bus.errors import TrinityError

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotPlainError(TrinityError, OSError):
    """What should be a file or folder of this user is a link, a device, or another user's."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(errno.EPERM, what, str(path))


def open_plain(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; never a link, a pipe or a device. Raises OSError or NotPlainError."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPlainError(path, "it is a link") from None
        raise
    return os.fdopen(_regular(path, descriptor), "rb")


def _regular(path: Path, descriptor: int) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainError(path, "it is no regular file")
    return descriptor


def read_plain(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file. Raises OSError or NotPlainError."""
    with open_plain(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise NotPlainError(path, f"the file is larger than {max_bytes} bytes")
    return content


def append_plain(path: Path) -> io.BufferedWriter:
    """Open a regular file to append to it, and make it where there is none; never where a link leads."""
    return os.fdopen(_regular(path, os.open(path, _APPEND, 0o644)), "ab")


def write_plain(path: Path, text: str) -> None:
    """Replace a file at once as a whole: what lies there, a link too, is not written to."""
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(new).replace(path)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise


def ensure_plain(folder: Path) -> None:
    """Pass a folder in which this user, or the system, owns everything, and nothing leads out; else NotPlainError."""
    owners = {os.geteuid(), 0}
    for path, found in _entries(folder):
        if stat.S_ISLNK(found.st_mode):
            raise NotPlainError(path, "it is a link")
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
            raise NotPlainError(path, "it is neither a file nor a folder")
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise NotPlainError(path, "the file has a second name elsewhere (a hard link)")
        if found.st_uid not in owners:
            raise NotPlainError(path, f"it belongs to user {found.st_uid}")


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    yield folder, folder.stat()
    todo = [folder]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    # Removed meanwhile.
                    continue
                yield path, found
                if stat.S_ISDIR(found.st_mode):
                    todo.append(path)


def within(path: Path, folder: Path) -> Path:
    """Return the regular file that a path of a model folder means: links inside the folder are followed.

    So are those of the hub's cache, from ``snapshots/X`` of a repository to its ``blobs``. NotPlainError: it leads
    elsewhere, or to no regular file. OSError: it cannot be looked at.
    """
    home, real = folder.resolve(strict=True), path.resolve(strict=True)
    homes = [home, *([home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [])]
    if not any(real.is_relative_to(one) for one in homes):
        raise NotPlainError(path, f"it is a link that leads out of the folder, to {real}")
    if not stat.S_ISREG(real.lstat().st_mode):
        raise NotPlainError(path, "it is no regular file")
    return real
