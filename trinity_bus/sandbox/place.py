"""Where a sandbox has its files: a folder with one owner at a time, which may be kept for the next.

::

    --make()------> OWNED --release(), remove()--> gone
    --claim(key)--> OWNED --remove()-------------> gone
                     ^  '---release()--> KEPT --too old, or too many--> gone, when the next sandbox is opened
                     '------claim(key)----'

    trinity-bus-sandbox-...      locked by its owner: where that is killed it is as if released
      files/                     the sandbox's folder; what runs there writes nowhere else
      calls                      digests of the calls that have filled it, in order, one a line

So what a killed explorer leaves is files, which the next attempt on this machine finds.

Failures: a place that another process holds, or that another user has made, is not waited for: its name is passed over,
and the owner gets an empty place without one.
"""

import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from trinity_bus import awake

_PREFIX: Final = "trinity-bus-sandbox-"
_KEPT: Final = f"{_PREFIX}kept-"
_NEW_S: Final = 60.0  # a new place is locked by its owner before it is as old
_KEPT_S: Final = 600.0
_MOST_KEPT: Final = 64
_FILES: Final = "files"
_CALLS: Final = "calls"
_OWN: Final = 0o700


class SandboxPlace:
    """A folder that is owned, and locked; ``kept`` by a name. Any thread may release or remove it."""

    def __init__(self, path: Path, lock: int, *, kept: bool) -> None:
        self.path = path
        self.files = path / _FILES
        self._lock = lock
        self._kept = kept
        self._ending = threading.Lock()
        self.files.mkdir(mode=0o700, exist_ok=True)

    @classmethod
    def make(cls) -> "SandboxPlace":
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        return cls(path, _locked(path), kept=False)

    @classmethod
    def claim(cls, key: str) -> "SandboxPlace":
        """Return the one of a name, as its last owner has left it; an empty one, where that cannot be had."""
        path = Path(tempfile.gettempdir()) / f"{_KEPT}{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            lock = _locked(path)
        except OSError:
            return cls.make()
        return cls(path, lock, kept=True)

    def calls(self) -> list[str]:
        try:
            return (self.path / _CALLS).read_text().split()
        except FileNotFoundError:
            return []

    def note_calls(self, digests: Sequence[str]) -> None:
        new = self.path / f"{_CALLS}.new"
        new.write_text("\n".join(digests))
        new.replace(self.path / _CALLS)

    def clear(self) -> None:
        """Make it empty, and, once it is, forget which calls have filled it."""
        # What has run there may have left what cannot be removed.
        old = self.files.rename(self.path / f"old-{uuid.uuid4().hex}")
        self.files.mkdir(mode=0o700)
        (self.path / _CALLS).unlink(missing_ok=True)
        remove_tree(old)

    def release(self) -> None:
        """Let the next owner have it; one without a name is removed. Safe to call twice."""
        with self._ending:
            if self._lock >= 0:
                if self._kept:
                    # It is kept from now on.
                    os.utime(self._lock)
                else:
                    remove_tree(self.path)
                self._unlock()

    def remove(self) -> None:
        """Remove it, unless it was released and has another owner by now."""
        with self._ending:
            if self._lock >= 0:
                remove_tree(self.path)
                self._unlock()
            elif self._kept:
                _remove(self.path, older_than_s=0.0)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        os.close(lock)


class KeptPlaces:
    """Those of an attempt's runs. A context manager, at whose end none is locked, whatever becomes of its sandbox."""

    def __init__(self, namespace: str, task_id: str) -> None:
        self._task = f"{namespace}/{task_id}"
        self.claimed: list[SandboxPlace] = []

    def of_run(self, run_id: int) -> SandboxPlace:
        """Return that of a run, as an earlier attempt on this machine has left it."""
        place = SandboxPlace.claim(f"{self._task}/{run_id}")
        self.claimed.append(place)
        return place

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for place in self.claimed:
            place.release()

    def remove(self) -> None:
        """Remove those that were claimed: no attempt follows."""
        for place in self.claimed:
            place.remove()


class LeftPlaces:
    """What dead owners have left, and what was kept for too long."""

    def __init__(self) -> None:
        self._removed_at = -_NEW_S

    def remove(self) -> None:
        """Remove it, unless this process has done so within the last minute."""
        now = awake.now()
        if now - self._removed_at < _NEW_S:
            return
        self._removed_at = now
        kept = []
        for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            if not path.name.startswith(_KEPT):
                _remove(path, older_than_s=_NEW_S)
            elif not _remove(path, older_than_s=_KEPT_S):
                with contextlib.suppress(OSError):
                    found = path.stat(follow_symlinks=False)
                    # Others that share this folder keep as many as they like.
                    if found.st_uid == os.getuid():
                        kept.append((found.st_mtime, path))
        for _, path in sorted(kept)[:-_MOST_KEPT]:
            _remove(path, older_than_s=_NEW_S)


def _locked(path: Path) -> int:
    """Return a descriptor that holds the lock of a folder of this user; OSError where it cannot be had."""
    with contextlib.ExitStack() as stack:
        file = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(file)
        if found.st_uid != os.getuid() or not os.path.samestat(found, path.stat(follow_symlinks=False)):
            raise PermissionError(f"{path} is not this user's")
        stack.pop_all()
    return file


def _remove(path: Path, *, older_than_s: float) -> bool:
    """Remove a folder that nobody owns. Returns whether it did."""
    try:
        # Before it is locked: whoever makes one is about to.
        if time.time() - path.stat(follow_symlinks=False).st_mtime < older_than_s:
            return False
        lock = _locked(path)
    except OSError:
        return False
    remove_tree(path)
    os.close(lock)
    return True


def remove_tree(root: Path) -> None:
    """Remove a folder that nobody else uses: however deep it is, and whatever strangers forbid in it.

    ``shutil.rmtree`` calls itself for each folder within a folder, so a thousand of them are a ``RecursionError``,
    which is no ``OSError`` and not among what it ignores; and a folder that its owner may not write to keeps what is in
    it. Here folders are taken out of each other, so that none lies deeper than another::

        root/a/b/c/...  -->  root/a, root/1 (was b: c/...)  -->  root/1, root/2 (was c: ...)  -->  ...  -->  gone

    No link is followed; nothing is raised: what another user owns stays, and all folders around it. One that is killed
    amid it is gone on with by the next one.
    """
    folders = [root]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError):
            _allow(folder)
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        if not entry.is_dir(follow_symlinks=False):
                            Path(entry.path).unlink()
                        elif folder == root:
                            folders.append(root / entry.name)
                        else:
                            # To be taken out of another folder, it must be writable itself.
                            _allow(Path(entry.path))
                            folders.append(Path(entry.path).rename(root / uuid.uuid4().hex))
            if folder != root:
                folder.rmdir()
    with contextlib.suppress(OSError):
        root.rmdir()


def _allow(folder: Path) -> None:
    if folder.stat(follow_symlinks=False).st_mode & _OWN != _OWN:
        folder.chmod(_OWN)
