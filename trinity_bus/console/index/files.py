"""The files of the store, and connections to them.

One process writes, whoever may read the folder reads: SQLite's write-ahead log lets neither wait for the other. What a
killed writer had not committed was never there.
"""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from trinity_bus.broker.layout import xdg
from trinity_bus.config import Settings
from trinity_bus.console.index.terms import StoreBusyError, StoreError

_WRITE_CACHE_KIB: Final = 64 << 10
_READ_CACHE_KIB: Final = 16 << 10
_WAL_PAGES: Final = 4096  # Of 4 KiB: that many are gathered before they are copied into the tables
_BUSY_S: Final = 10.0


def store_folder(settings: Settings) -> Path:
    """Return the folder of a mesh's index: each namespace has one of its own. Absolute."""
    base = settings.console.folder or xdg("XDG_DATA_HOME", ".local/share") / "trinity-bus" / "console"
    return base.absolute() / settings.kafka.namespace


def database(folder: Path) -> Path:
    return folder / "index.sqlite"


def lock(folder: Path) -> IO[bytes]:
    """Return the file that says who writes; closing it, or ending in any way, gives it back.

    Raises StoreBusyError: another process has it; StoreError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("ab")
    except OSError as error:
        raise StoreError(f"the console's index cannot be kept in {folder}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StoreBusyError(
            f"another console keeps its index in {folder}: stop it, or set console.folder to another folder"
        ) from error
    return file


def writing(folder: Path) -> sqlite3.Connection:
    """Return the connection of whoever has the lock. Transactions are begun by hand."""
    db = sqlite3.connect(database(folder), timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    # A killed process loses nothing by it; a machine without power the last transactions, each as a whole.
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA cache_size = {-_WRITE_CACHE_KIB}")
    db.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    return db


def reading(folder: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{database(folder).as_uri()}?mode=ro", uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    db.execute(f"PRAGMA cache_size = {-_READ_CACHE_KIB}")
    return db


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Say in one line, as a StoreError, what the database complains of."""
    try:
        yield
    except sqlite3.Error as error:
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_FULL:
                why = "the disk is full: make room, and it goes on by itself"
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                why = "its files are damaged: stop the console and delete the folder, and it is made anew from the log"
            case sqlite3.SQLITE_CANTOPEN:
                why = (
                    "there is none, or it cannot be opened: run `trinity-bus console`, or look who may read the folder"
                )
            case _:
                why = str(error)
        raise StoreError(f"the console's index in {folder}: {why}") from error
