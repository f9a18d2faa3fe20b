"""The index as Parquet files, one for each table: for whoever asks with tools of their own.

Times are timestamps. Samples have what their group says of them beside their own columns, and the beginning of their
text; which words are in them stays in the index. A file appears when it is whole.
"""

import sqlite3
from itertools import takewhile
from pathlib import Path
from typing import Final

from trinity_bus.console.index.files import explained, reading
from trinity_bus.console.index.questions import StoreError
from trinity_bus.console.index.schema import NUMBERED, SAMPLE_BITS, SLOT_BITS, TABLE_NAMES

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
