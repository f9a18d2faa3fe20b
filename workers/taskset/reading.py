"""Sources to tasks: every row of their files, before anything runs.

Failures: a row that is no task, an id that two rows share, another number of rows than the description says: each is a
``DatasetError`` that names file and row.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas import Task
from trinity_bus.runtime.wording import counted
from workers.task_lines import BadLine, parse
from workers.taskset.description import DatasetError, RowSource
from workers.taskset.formatters import FormatError, completed, formatter_of, task_of, value_at
from workers.taskset.rows import Row, RowError, RowReader, files, unpacked

_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9._:/@#-]+")  # what no id has
_LONGEST_NAME: Final = 150


@dataclass(slots=True)
class Lines:
    tasks: list[Task] = field(default_factory=list)
    difficulties: list[Any] = field(default_factory=list)  # of each, where there is a column of them; else nothing
    digest: bytes = b""  # of the bytes that they come from

    def joined(self, other: "Lines") -> "Lines":
        return Lines(self.tasks + other.tasks, self.difficulties + other.difficulties, self.digest + other.digest)


def read(source: RowSource, folder: Path, *, longest_id: int) -> Lines:
    """Return all tasks of a source that has files; ``longest_id`` leaves room for what stands before an id."""
    path = folder / str(source.path)
    found = Lines()
    seen: dict[str, str] = {}
    for place, task, row in _all(source, path, found):
        if len(task.task_id) > longest_id:
            raise DatasetError(f"{place}: task_id {task.task_id!r} is too long beside the taskset's name")
        first = seen.setdefault(task.task_id, place)
        if first is not place:
            raise DatasetError(f"{place}: duplicate_id: task_id {task.task_id!r} is that of {first} too")
        found.tasks.append(task)
        if source.difficulty is not None:
            try:
                found.difficulties.append(value_at(source.difficulty, row))
            except FormatError as error:
                raise DatasetError(f"{place}: there is no difficulty: {error}") from error
    if not found.tasks:
        raise DatasetError(f"{path} has no task")
    if source.rows not in (None, len(found.tasks)):
        raise DatasetError(f"{path} has {counted(len(found.tasks), 'row')}, and the description says {source.rows}")
    return found


def _all(source: RowSource, path: Path, found: Lines) -> Iterator[tuple[str, Task, Row]]:
    """Return the tasks of all files of a path, each with its place and its row, and note of what bytes they are."""
    try:
        formatter_of(source)
        parts = files(path)
    except (FormatError, RowError) as error:
        raise DatasetError(f"{path}: {error}") from error
    names = _names(parts) if len(parts) > 1 or "*" in str(source.path) else [""]
    with RowReader() as reader:
        for file, name in zip(parts, names, strict=True):
            try:
                # A pipe or a device would never end.
                if file.exists() and not file.is_file():
                    raise DatasetError(f"{file} is no file")
                raw = file.read_bytes()
            except OSError as error:
                raise DatasetError(f"{file} cannot be read: {error.strerror}") from error
            found.digest += raw if len(parts) == 1 else hashlib.sha256(raw).digest()
            for number, task, row in _tasks(source, file, raw, reader, name):
                yield f"{file}:{number}", task, row


def _names(parts: list[Path]) -> list[str]:
    """Return what tells files apart in ids: their names, or where they lie from the folder that has all of them."""
    common = Path(os.path.commonpath([part.parent for part in parts]))
    for found in ([part.stem for part in parts], [str(part.relative_to(common)) for part in parts]):
        names = [_UNNAMEABLE.sub("-", name).lstrip("._:/@#-") or "part" for name in found]
        if len({*names}) == len(names) and max(map(len, names)) <= _LONGEST_NAME:
            return names
    return [f"part-{place}" for place in range(len(parts))]


def _tasks(source: RowSource, file: Path, raw: bytes, reader: RowReader, name: str) -> Iterator[tuple[int, Task, Row]]:
    """Return the tasks of a file with the number and the content of their rows."""
    number: int | None = None
    try:
        if source.workflow is None and source.formatter is None:
            suffix, content = unpacked(file.name, raw)
            if suffix == ".jsonl":
                for line in parse(content.splitlines(), Task):
                    if isinstance(line, BadLine):
                        raise DatasetError(f"{file}:{line.number}: {line.reason}")
                    number, task = line
                    yield number, completed(source, task), task.data
                return
        fields_of = formatter_of(source)
        for number, row in reader.rows(file.name, raw, source.paths):
            default_id = f"{name}/{number}" if name else str(number)
            yield number, task_of(source, fields_of(row), default_id), row
    except RowError as error:
        raise DatasetError(f"{file}{'' if error.number is None else f':{error.number}'}: {error}") from error
    except FormatError as error:
        raise DatasetError(f"{file}:{number}: {error}") from error
