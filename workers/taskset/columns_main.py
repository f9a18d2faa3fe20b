"""``python -I columns_main.py``: reads Parquet files and Arrow data, and may die of them. See ``workers.taskset.rows``.

::

    in:   a header (msgpack), the content of the file; again and again
    out:  [n]: row group n begins | {...}: a row | "...": it cannot be read, and why | nil: that was all

Each is a frame: its length, four bytes, and a body of msgpack. The kernel bounds memory, and the time that is computed
between two batches. Without anything of the project: it starts in a moment, and knows no secret.

Failures: what pyarrow refuses is told; where there is no memory left it ends with ``OUT_OF_MEMORY``, and where a batch
takes too long, or breaks pyarrow, by a signal.
"""

import contextlib
import itertools
import math
import os
import re
import resource
import signal
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa
from pyarrow import parquet

OUT_OF_MEMORY: Final = 77
MEMORY_BYTES: Final = 1 << 30  # of addresses, beside the file: a third of a GiB is taken by pyarrow itself
BATCH_S: Final = 60.0  # of computing
MAX_ROW_BYTES: Final = 8 << 20
_HEAD: Final = struct.Struct(">I")
_BATCH: Final = 64  # rows at a time
_WHY_CHARS: Final = 500
_NO_PART: Final = re.compile(r"(?:\.|(\.\d*[1-9]))0+(?!\d)")


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where a machine or a container has too little, it is this process that ends, and not who has started it; where
    # that may not be said, the limits below hold all the same.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    pa.set_cpu_count(1)
    while head := sys.stdin.buffer.read(_HEAD.size):
        asked = msgspec.msgpack.decode(sys.stdin.buffer.read(_HEAD.unpack(head)[0]))
        # Of the copy that is read, and what it is read from.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES + 2 * asked["size"], resource.RLIM_INFINITY))
        try:
            content = sys.stdin.buffer.read(asked["size"])
            _read(asked["suffix"], content, asked["paths"])
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        del content


def _read(suffix: str, content: bytes, paths: list[str] | None) -> None:
    name, batches = {".parquet": ("Parquet file", _parquet), ".arrow": ("Arrow data", _arrow)}[suffix]
    why = f"this is no {name}"
    try:
        signal.setitimer(signal.ITIMER_PROF, BATCH_S)
        for batch in batches(content, paths):
            if isinstance(batch, int):
                why = "it cannot be read"
                _say([batch])
                # It may be the last that is heard.
                sys.stdout.buffer.flush()
                continue
            batch.validate(full=True)
            for start in range(0, len(batch), _BATCH):
                _rows(batch.slice(start, _BATCH))
                signal.setitimer(signal.ITIMER_PROF, BATCH_S)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - told, with its row
        text = " ".join(str(error).split()) or type(error).__name__
        _say(f"{why}: {text}"[:_WHY_CHARS])
    else:
        _say(None)
    sys.stdout.buffer.flush()


def _say(said: Any) -> None:
    body = msgspec.msgpack.encode(said)
    if len(body) > MAX_ROW_BYTES:
        raise ValueError(f"a row of {len(body):,} bytes; at most {MAX_ROW_BYTES:,} are allowed")
    sys.stdout.buffer.write(_HEAD.pack(len(body)) + body)


def _parquet(content: bytes, paths: list[str] | None) -> Iterator[int | pa.RecordBatch]:
    with parquet.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as opened:
        wanted = _wanted(opened.schema_arrow, paths)
        for group in range(opened.num_row_groups):
            yield group + 1
            yield from opened.iter_batches(_BATCH, row_groups=[group], columns=wanted, use_threads=False)


def _arrow(content: bytes, paths: list[str] | None) -> Iterator[int | pa.RecordBatch]:
    is_file = content.startswith(b"ARROW1")
    opened = pa.ipc.open_file if is_file else pa.ipc.open_stream
    with opened(pa.BufferReader(content), options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
        wanted = _wanted(reader.schema, paths)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
        # A number before each batch, which says where a bad one is.
        for group in itertools.count(1):
            yield group
            batch = next(batches, None)
            if batch is None:
                return
            yield batch.select(wanted)


def _wanted(schema: pa.Schema, paths: list[str] | None) -> list[str]:
    """Return the columns that are to be read: all of them, too, where one that is named is not there."""
    names: list[str] = schema.names
    if not names:
        # Rows of nothing take no bytes, however many there are said to be.
        raise ValueError("it has no columns")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"two columns are called {min(twice)!r}")
    found = {path if path in names else path.partition(".")[0] for path in paths or names}
    return [name for name in names if name in found] if found <= set(names) else names


def _rows(batch: pa.RecordBatch) -> None:
    columns = [_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        _say(dict(zip(batch.schema.names, values, strict=True)))
    sys.stdout.buffer.flush()


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if (read_as := _read_as(kind)) != kind:
        column = column.cast(read_as, safe=False)
    found = column.to_pylist(maps_as_pydicts="strict")
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return list(found)
    return [_plain(value, kind) for value in found]


def _read_as(kind: Any) -> Any:
    """Return the type that a column is read as: Python has no nanoseconds."""
    if _is_time(kind):
        return pa.string()
    if kind == pa.duration("ns"):
        # Other units would have values that are too many microseconds.
        return pa.duration("us")
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_read_as(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_read_as(kind.key_type), _read_as(kind.item_type))
    return pa.list_(_read_as(kind.value_type)) if hasattr(kind, "value_field") else kind


def _is_time(kind: Any) -> bool:
    return kind is not None and (pa.types.is_timestamp(kind) or pa.types.is_time(kind))


def _plain(value: Any, kind: Any) -> Any:
    """Return what msgpack has: no NaN, which stands for a missing value."""
    below = getattr(kind, "item_type", getattr(kind, "value_type", None))
    match value:
        case dict():
            kinds = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
            return {str(key): _plain(inner, kinds.get(key, below)) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner, below) for inner in value]
        case float():
            return None if math.isnan(value) else _shortest(value, kind)
        case Decimal():
            return format(value, "f")
        case date() | timedelta() | UUID():
            return str(value)
    # Parts of a second are told where there are some.
    return _NO_PART.sub(r"\1", value) if isinstance(value, str) and _is_time(kind) else value


def _shortest(value: float, kind: Any) -> float:
    """Return a number as its shortest text means it: 0.1, and not what a wider number makes of it."""
    narrow = {pa.float16(): ("e", 3), pa.float32(): ("f", 6)}.get(kind)
    if narrow is None:
        return value
    width, least = narrow
    told = (float(f"{value:.{digits}g}") for digits in itertools.count(least))
    return next(one for one in told if struct.pack(width, one) == struct.pack(width, value))


if __name__ == "__main__":
    main()
