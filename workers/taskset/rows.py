"""Rows of files, whatever their format: each with the number that a person finds it by. No more than reading.

A file is read once, by who wants its rows: what is hashed is what they are made of.

=====================  =============================================  ================================================
path                   read with                                      the number of a row
=====================  =============================================  ================================================
``*.jsonl``            msgspec, a line at a time                      its line
``*.csv``              the standard library; the first line names     the line that it ends in
                       the columns
``*.parquet``          pyarrow                                        its place in the file, from 1
a folder               pyarrow: what ``datasets`` has saved           likewise, after the file's name, if several
                       (``Dataset.save_to_disk``)
=====================  =============================================  ================================================

Failures: what cannot be read is a :class:`RowError` with its number, as is a line that is no row; what follows is not
read. Nothing in a file can run code.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from trinity_bus.errors import TrinityError

type Row = Mapping[str, Any]

_STATE: Final = "state.json"
_SPLITS: Final = "dataset_dict.json"


class RowError(TrinityError):
    """A row cannot be read.

    Args:
        number: Of the row; None: of the whole file.
        reason: Why.
    """

    def __init__(self, number: int | None, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def files(path: Path) -> list[Path]:
    """Return the files that make up a path: itself, all that a pattern matches, or those of a saved dataset.

    Raises:
        RowError: There is none.
    """
    if path.is_dir():
        return _saved(path)
    if path.exists():
        return [path]
    found = sorted(path.parent.glob(path.name)) if path.parent.is_dir() else _far(path)
    if not found:
        raise RowError(None, "no such file")
    return found


def rows(suffix: str, content: bytes) -> Iterator[tuple[int, Row]]:
    """Return the rows of one file with their numbers.

    Args:
        suffix: Of its name, which tells its format.
        content: All of it.

    Raises:
        RowError: It has a format that is not known, or a row that cannot be read.
    """
    read = _READERS.get(suffix)
    if read is None:
        raise RowError(None, f"the format {suffix!r} is not known; there are {', '.join(_READERS)}")
    try:
        yield from read(content)
    except OSError as error:
        raise RowError(None, f"cannot be read: {error.strerror or error}") from error


def _far(path: Path) -> list[Path]:
    """Return what a pattern matches that has wildcards in its folders too."""
    fixed = next((parent for parent in path.parents if parent.is_dir()), Path())
    return sorted(fixed.glob(str(path.relative_to(fixed))))


def _saved(folder: Path) -> list[Path]:
    """Return the files of a folder that ``datasets`` has written, in their order."""
    try:
        if (folder / _SPLITS).is_file():
            splits = json.loads((folder / _SPLITS).read_bytes())["splits"]
            such = f"{folder.name}/{splits[0]}"
            raise RowError(None, f"this folder has the splits {', '.join(splits)}: name one of them, such as {such}")
        state = json.loads((folder / _STATE).read_bytes())
        names = [str(one["filename"]) for one in state["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise RowError(None, f"this is no folder that the library datasets has saved: {error!r}") from error
    return [folder / Path(name).name for name in names]


def _json_lines(content: bytes) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(io.BytesIO(content), 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise RowError(number, f"this is no JSON object: {error}") from error


def _csv(content: bytes) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise RowError(
                    reader.line_num, f"it has not the {len(reader.fieldnames or ())} columns of the first line"
                )
            yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise RowError(reader.line_num, f"this is no CSV: {error}") from error


def _parquet(content: bytes) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(pa.BufferReader(content)) as opened:
            yield from _numbered(opened.iter_batches())
    except pa.ArrowException as error:
        raise RowError(None, f"this is no Parquet file: {error}") from error


def _arrow(content: bytes) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.BufferReader(content)) as stream:
            yield from _numbered(stream)
    except pa.ArrowException as error:
        raise RowError(None, f"this is no Arrow stream: {error}") from error


def _numbered(batches: Iterator[Any]) -> Iterator[tuple[int, Row]]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield number, row


_READERS: Final[Mapping[str, Callable[[bytes], Iterator[tuple[int, Row]]]]] = {
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
