"""The files of the store, connections to them, and the index as Parquet files.

One process writes, whoever may read the folder reads: SQLite's write-ahead log lets neither wait for the other. What a
killed writer had not committed was never there.

There is a Parquet file for each table, for whoever asks with tools of their own. Times are timestamps. Samples have
what their group says of them beside their own columns, and the beginning of their text; which words are in them stays
in the index. A file appears when it is whole.
"""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import IO, Final

from trinity_bus.broker.layout import xdg
from trinity_bus.config import Settings
from trinity_bus.console.index.questions import StoreBusyError, StoreError
from trinity_bus.console.index.schema import NUMBERED, SAMPLE_BITS, SLOT_BITS, TABLE_NAMES

_WRITE_CACHE_KIB: Final = 64 << 10
_READ_CACHE_KIB: Final = 16 << 10
_WAL_PAGES: Final = 4096  # Of 4 KiB: that many are gathered before they are copied into the tables
_BUSY_S: Final = 10.0


def store_folder(settings: Settings) -> Path:
    """Return the folder of a mesh's index: each namespace has one of its own. Absolute."""
    base = settings.console.folder or xdg("XDG_DATA_HOME", ".local/share") / "trinity-bus" / "console"
    return base.expanduser().absolute() / settings.kafka.namespace


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


_ROWS: Final = 20_000  # Held in memory at once
# Tables that are not written: the index's own, and those of samples, which are one file
_NOT_PLAIN: Final = frozenset({"meta", "offsets", "minutes", "samples", "texts", "token_figures"})

type _Column = tuple[str, str, str]  # Name, type in SQLite or ``TIME``, and expression


def export(folder: Path, out: Path) -> dict[str, int]:
    """Write every table to a file in ``out``, all as of one moment; return how many rows each has."""
    with explained(folder):
        db = reading(folder)
        try:
            db.execute("BEGIN")
            out.mkdir(parents=True, exist_ok=True)
            plain = (name for name in TABLE_NAMES if name not in _NOT_PLAIN)
            tables = {name: (name, _plain_columns(db, name)) for name in plain} | {"samples": _samples(db)}
            return {name: _write(db, out / f"{name}.parquet", *table) for name, table in tables.items()}
        except OSError as error:
            raise StoreError(f"{out}: {error.strerror or error}") from error
        finally:
            db.close()


def _plain_columns(db: sqlite3.Connection, table: str) -> list[_Column]:
    found = [(name, kind, f'"{name}"') for _, name, kind, *_ in db.execute(f'PRAGMA table_info("{table}")')]
    if table in NUMBERED:
        found[0] = ("at", "TIME", f"id >> {SLOT_BITS}")
    return [(name, "TIME" if name == "at" else kind, what) for name, kind, what in found]


def _samples(db: sqlite3.Connection) -> tuple[str, list[_Column]]:
    of_group = [(name, kind, f'g."{name}"') for _, name, kind, *_ in db.execute("PRAGMA table_info(groups)")]
    # Its numbers and figures are those of all samples together.
    columns = [("at", "TIME", f"g.id >> {SLOT_BITS}"), *takewhile(lambda one: one[0] != "samples", of_group[1:])]
    columns.append(("number", "INTEGER", f"{(1 << SAMPLE_BITS - 1) - 1} - (s.id & {(1 << SAMPLE_BITS - 1) - 1})"))
    own = [(name, kind, f's."{name}"') for _, name, kind, *_ in db.execute("PRAGMA table_info(samples)")]
    head = ("response", "TEXT", "(SELECT head FROM texts WHERE texts.id = s.id)")
    return f"samples s JOIN groups g ON g.id = s.id >> {SAMPLE_BITS}", [*columns, *own[1:], head]


def _write(db: sqlite3.Connection, path: Path, source: str, columns: list[_Column]) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"TIME": pa.timestamp("ms", "UTC"), "INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind, _ in columns])
    rows = db.execute(f"SELECT {', '.join(what for *_, what in columns)} FROM {source}")  # noqa: S608 - our own tables
    part = path.with_name(path.name + ".part")
    count = 0
    with parquet.ParquetWriter(part, schema, compression="zstd") as writer:
        while chunk := rows.fetchmany(_ROWS):
            arrays = [
                pa.array(values, field.type) for values, field in zip(zip(*chunk, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(chunk)
    part.replace(path)
    return count
