"""Rows of files, whatever their format: each with the number that a person finds it by. No more than reading.

A file is read once, by who wants its rows: what is hashed is what they are made of.

=====================  =============================================  ================================================
path                   read with                                      the number of a row
=====================  =============================================  ================================================
``*.jsonl``            the standard library, a line at a time         its line
``*.json``             the same, or an array, an object at a time     its line, or its place in the array, from 1
``*.csv``              the standard library; the first line names     the line that it ends in
                       the columns
``*.parquet``          pyarrow                                        its place in the file, from 1
``*.arrow``            pyarrow, streams and files                     likewise
a folder               pyarrow: what ``datasets`` has saved           likewise, after the file's name, if several
                       (``Dataset.save_to_disk``)
=====================  =============================================  ================================================

Lines may be packed (``*.jsonl.gz``). pyarrow trusts what it reads, so it has a process of its own, which the kernel
keeps within limits, and which may die::

    (none) --first file--> IDLE --a file--> READING --all its rows, or why not--> IDLE
                                               '--its end, or nobody wants the rest--> (none)

Failures: what cannot be read is a :class:`RowError` with its number, as is a line that is no row; what follows is not
read. Rows of more bytes in sum than a file of its size may have are refused, wherever they come from. Nothing in a file
can run code.
"""

import codecs
import csv
import gzip
import importlib.util
import io
import json
import re
import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from trinity_bus.errors import TrinityError
from trinity_bus.runtime.frames import HEAD, UNREADABLE, ProtocolError, read_frame
from workers.task_lines import distinct

type Row = Mapping[str, Any]

_STATE: Final = "state.json"
_SPLITS: Final = "dataset_dict.json"
_PACKED: Final = ".gz"
_COLUMNAR: Final = (".parquet", ".arrow")
_MAIN: Final = Path(__file__).with_name("columns_main.py")
_OUT_OF_MEMORY: Final = 77  # the same as in ``columns_main``, which is not imported here: it brings pyarrow
MAX_ROW_BYTES: Final = 8 << 20
_TASK_BYTES: Final = 1 << 10  # that a row takes at least, whatever it has
_FEW_BYTES: Final = 128 << 20
# What packs best of what people train on, hundreds of thousands of sums, takes 200 times its size.
_PER_BYTE: Final = 256
_MOST_BYTES: Final = 8 << 30
_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class RowError(TrinityError):
    """A row cannot be read; ``number`` None: the whole file."""

    def __init__(self, number: int | None, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def files(path: Path) -> list[Path]:
    """Return the files of a path: itself, what a pattern matches, or a saved dataset's; RowError where none is."""
    if path.is_dir():
        return _saved(path)
    if path.exists():
        return [path]
    fixed = next((parent for parent in path.parents if parent.is_dir()), Path())
    wanted = path.relative_to(fixed)
    found = sorted(one for one in fixed.glob(str(wanted)) if str(wanted).startswith(".") or not _is_hidden(one, fixed))
    if not found:
        raise RowError(None, "no such file")
    return found


def most_bytes(size: int) -> int:
    """Return what the rows of a file of this size may have in sum."""
    return min(_FEW_BYTES + _PER_BYTE * size, _MOST_BYTES)


def unpacked(name: str, raw: bytes) -> tuple[str, bytes]:
    """Return the format of a file, as its name has it, and its content, without a mark of byte order."""
    path, content = Path(name.lower()), raw
    if path.suffix == _PACKED:
        path, most = Path(path.stem), most_bytes(len(raw))
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                content = file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise RowError(None, f"this is no gzip file: {error}") from error
        if len(content) > most:
            raise RowError(None, f"it has more than {most:,} bytes in it, for {len(raw):,} of its own")
    if path.suffix not in _COLUMNAR:
        if content.startswith(_WIDE):
            raise RowError(1, "this is UTF-16; save it as UTF-8")
        content = content.removeprefix(codecs.BOM_UTF8)
    return path.suffix, content


class RowReader:
    """Reads rows, and ends the process that it has needed for that with its context."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def rows(self, name: str, raw: bytes, paths: Sequence[str] | None = None) -> Iterator[tuple[int, Row]]:
        """Return the rows of one file, whose name's end tells its format, with their numbers.

        ``paths`` are the columns that are wanted, or parts of them, None all; others may be there as well.
        """
        suffix, content = unpacked(name, raw)
        most = left = most_bytes(len(raw))
        read = _READERS.get(suffix)
        if suffix in _COLUMNAR:
            found = self._columnar(suffix, content, paths)
        elif read is not None:
            found = read(content)
        else:
            raise RowError(None, f"the format {suffix!r} is not known; there are {', '.join([*_READERS, *_COLUMNAR])}")
        for number, size, row in found:
            left -= size + _TASK_BYTES
            if left < 0:
                raise RowError(number, f"a file of {len(raw):,} bytes may have rows of {most:,} in sum, and has more")
            yield number, row

    def _columnar(self, suffix: str, content: bytes, paths: Sequence[str] | None) -> Iterator[tuple[int, int, Row]]:
        process = self._process or self._start()
        assert process.stdin is not None  # noqa: S101 - for types
        assert process.stdout is not None  # noqa: S101 - likewise
        number, group, whole = 0, "", False
        header = msgspec.msgpack.encode({"suffix": suffix, "size": len(content), "paths": paths})
        try:
            try:
                process.stdin.write(HEAD.pack(len(header)) + header)
                process.stdin.write(content)
                process.stdin.flush()
                while (body := read_frame(process.stdout, MAX_ROW_BYTES)) is not None:
                    said = msgspec.msgpack.decode(body)
                    if isinstance(said, dict):
                        number += 1
                        yield number, len(body), said
                    elif isinstance(said, list):
                        group = f"row group {said[0]}: "
                    else:
                        whole = True
                        if said is None:
                            return
                        raise RowError(number + 1 if group else None, f"{group}{said}")
                why = _ended(process.wait())
            except BrokenPipeError:
                why = _ended(process.wait())
            except (ProtocolError, *UNREADABLE) as error:
                why = f"what is said of it cannot be read: {error}"
            raise RowError(number + 1 if group else None, f"{group}{why}")
        finally:
            if not whole:
                self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        if importlib.util.find_spec("pyarrow") is None:
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        self._process = subprocess.Popen(  # noqa: S603 - this Python, and a file beside this one
            [sys.executable, "-I", str(_MAIN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Nothing of this process's. Other allocators take far more addresses than they use.
            env={"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"},
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # Closes its pipes, too.
            process.communicate()


def _ended(status: int) -> str:
    if status == _OUT_OF_MEMORY:
        return "it takes more memory than a file of its size may"
    if status == -signal.SIGPROF:
        return "it takes longer than a few rows may"
    if status == -signal.SIGKILL:
        return "it takes more memory than there is"
    how = f"of {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return f"the process that reads it has died {how}: the file is damaged"


def _is_hidden(path: Path, folder: Path) -> bool:
    """Whether no pattern means a file: a copy that an editor or a file system keeps beside the others."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


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


def _json_lines(content: bytes) -> Iterator[tuple[int, int, Row]]:
    for number, line in enumerate(io.BytesIO(content), 1):
        if not line.strip():
            continue
        if len(line) > MAX_ROW_BYTES:
            raise RowError(number, f"a row of {len(line):,} bytes; at most {MAX_ROW_BYTES:,} are allowed")
        try:
            # What Python's json writes for a number that is none is a missing value.
            row = json.loads(line.decode(), object_pairs_hook=distinct, parse_constant=_constant)
        except (ValueError, RecursionError) as error:
            raise RowError(number, f"this is no JSON object: {error}") from error
        yield number, len(line), _object(number, row)


def _json(content: bytes) -> Iterator[tuple[int, int, Row]]:
    if not content.lstrip().startswith(b"["):
        yield from _json_lines(content)
        return
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise RowError(None, f"this is no JSON: {error}") from error
    at, number = _behind_comma(text, text.index("[") + 1), 1
    while text[at : at + 1] != "]" or text[at + 1 :].strip():
        size, some = 0, 1 << 12  # each row is copied to be read: most are short
        while not size:
            try:
                row, size = _DECODER.raw_decode(text[at : at + some])
            except (ValueError, RecursionError) as error:
                # It may be longer. No more than a row may have is ever read at once.
                if some >= min(MAX_ROW_BYTES, len(text) - at):
                    raise RowError(
                        number, f"this is no JSON object of at most {MAX_ROW_BYTES:,} bytes: {error}"
                    ) from error
                some *= 2
        yield number, size, _object(number, row)
        at, number = _behind_comma(text, at + size), number + 1


def _behind_comma(text: str, at: int) -> int:
    found = _COMMA.match(text, at)
    return found.end() if found else at


def _object(number: int, row: Any) -> Row:
    if not isinstance(row, dict):
        raise RowError(number, f"this is no JSON object, but {type(row).__name__}")
    return row


def _constant(name: str) -> float | None:
    return None if name == "NaN" else float(name)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=distinct, parse_constant=_constant)
_COMMA: Final = re.compile(r"\s*,?\s*")


def _csv(content: bytes) -> Iterator[tuple[int, int, Row]]:
    try:
        lines = io.StringIO(content.decode(), newline="")
    except UnicodeDecodeError as error:
        raise RowError(content.count(b"\n", 0, error.start) + 1, f"this is no CSV: {error}") from error
    # Of the process; nothing else in it reads CSV.
    csv.field_size_limit(MAX_ROW_BYTES)
    reader = csv.reader(lines, strict=True)
    try:
        names = next(filter(None, reader), [])
        twice = [name for name, count in Counter(names).items() if name and count > 1]
        if twice:
            raise RowError(reader.line_num, f"two columns are called {min(twice)!r}")
        for values in reader:
            if not values:
                continue
            if len(values) != len(names):
                raise RowError(reader.line_num, f"it has not the {len(names)} columns of the first line")
            yield reader.line_num, sum(map(len, values)), dict(zip(names, values, strict=True))
    except csv.Error as error:
        raise RowError(reader.line_num, f"this is no CSV: {error}") from error


_READERS: Final[Mapping[str, Callable[[bytes], Iterator[tuple[int, int, Row]]]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
}
