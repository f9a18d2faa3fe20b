"""Sources to tasks: every row of their files, before anything runs, by columns, by a function, or as it is.

Failures: a row that is no task, an id that two rows share, another number of rows than the description says: each is a
``DatasetError`` that names file and row.

A formatter is a function from a row to the fields of a task. An installed package registers one by an entry point of
the group ``trinity_bus.formatters``; its name comes from a description on this machine, never off the wire.

A number is written as an answer can have it, ``42`` and not ``42.0``, ``0.00001`` and not ``1e-05``, and a truth value
as JSON writes it.

Failures: a row that no task can be made of is a ``FormatError`` that says why, and so is a column of lists, structures
or bytes where text is wanted; one that makes the function of somebody else raise, likewise.
"""

import difflib
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from schemas.codec import encode
from schemas.errors import SchemaError, counted
from schemas.message import from_text, in_one_shape
from schemas.task import ALL_ALIKE, Task
from trinity_bus.config.values import at_home
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.workflow import merge_sampling
from workers.task_lines import BadLine, parse
from workers.taskset.description import DatasetError, EvalRows, RowSource, RowTemplate
from workers.taskset.harbor import harbor_fields, harbor_row, task_folders
from workers.taskset.rows import Row, RowError, RowReader, files, unpacked

type Formatter = Callable[[Row], Mapping[str, Any]]

GROUP: Final = "trinity_bus.formatters"
_PLACE: Final = re.compile(r"-?[0-9]{1,9}")  # in a list, from its end where it is negative


class FormatError(TrinityError):
    """No task can be made of a row."""


def formatter_of(source: RowSource) -> Formatter:
    """Return what makes fields of a task from a row; FormatError where that is not registered or importable."""
    if source.formatter is not None:
        return _registered(source.formatter)
    return (lambda row: _columns(source, row)) if source.workflow is not None else _as_it_is


def task_of(source: RowSource, fields: Mapping[str, Any], default_id: str) -> Task:
    """Return the task that these fields make, completed; FormatError where they make none that a record can hold."""
    try:
        task = completed(source, Task(**{"task_id": default_id, **in_one_shape(fields)}))
        encode(task)
    except (SchemaError, ValueError) as error:
        raise FormatError(str(error)) from error
    return task


def completed(source: RowSource, task: Task) -> Task:
    """Return a task with what its source says of all its tasks; FormatError where it could never be trained on."""
    own: dict[str, Any] = {
        "repeat_times": task.repeat_times or source.repeat_times,
        "pool": task.pool or source.pool,
        "timeout_s": task.timeout_s or source.timeout_s,
    }
    if source.sampling is not None:
        own["sampling"] = merge_sampling(source.sampling, task.sampling)
    if source.name is not None:
        own["task_id"] = f"{source.name}/{task.task_id}"
    task = task.model_copy(update=own)
    if not isinstance(source, EvalRows):
        if task.is_greedy:
            raise FormatError("sampling.temperature is 0: what is drawn so is never trained on; leave it out")
    elif (task.repeat_times or 1) > 1 and not (task.sampling and task.sampling.temperature):
        raise FormatError(f"{task.repeat_times} runs at temperature 0, which evaluations have unless told, {ALL_ALIKE}")
    return task


def _registered(name: str) -> Formatter:
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(known) or 'none'}"
        raise FormatError(f"formatter {name!r} is not known{hint}; packages register them as {GROUP!r}")
    try:
        function: Formatter = known[name].load()
    except (ImportError, AttributeError) as error:
        raise FormatError(f"formatter {name!r}: {known[name].value} cannot be imported: {error}") from error

    def call(row: Row) -> Mapping[str, Any]:
        try:
            return function(row)
        # It is somebody else's, and whatever it raises is about this row.
        except Exception as error:
            raise FormatError(f"formatter {name!r} raised {type(error).__name__}: {error}") from error

    return call


def _as_it_is(row: Row) -> Mapping[str, Any]:
    # Columns have a value in every row, be it none.
    return {name: value for name, value in row.items() if value is not None}


def _columns(source: RowSource, row: Row) -> Mapping[str, Any]:
    fields: dict[str, Any] = {"workflow": source.workflow}
    if source.id is not None:
        fields["task_id"] = _filled(source.id, row)
    if source.messages is not None:
        fields["messages"] = _asked(source.messages, row)
    elif source.prompt is not None and not source.chat:
        fields["prompt"] = _filled(source.prompt, row)
    elif source.prompt is not None:
        fields["messages"] = [{"role": "user", "content": _filled(source.prompt, row)}]
    if source.system is not None and "messages" in fields:
        fields["messages"] = [{"role": "system", "content": _filled(source.system, row)}, *fields["messages"]]
    if source.answer is not None:
        fields["answer"] = _filled(source.answer, row)
    if source.data:
        fields["data"] = {name: value_at(name, row) for name in source.data}
    return fields


def _asked(path: str, row: Row) -> list[Any]:
    """Return the messages of a column, as records have them, up to what is to be answered."""
    try:
        messages = in_one_shape({"messages": value_at(path, row)})["messages"]
    except ValueError as error:
        raise FormatError(f"column {path!r} is no list of messages: {error}") from error
    if not isinstance(messages, list):
        raise FormatError(f"column {path!r} is no list of messages")
    while len(messages) > 1 and isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant":
        del messages[-1]
    return messages


def value_at(path: str, row: Row) -> Any:
    """Return the value of a column, or of a part of it: ``answers.text.0``; FormatError where there is nothing."""
    name, _, inner = (path, "", "") if path in row else path.partition(".")
    if name not in row:
        raise FormatError(f"there is no column {name!r}; there are {', '.join(map(repr, row))}")
    value = row[name]
    for step in inner.split(".") if inner else ():
        if value is None:
            break
        with suppress(ValueError, RecursionError):
            value = from_text(value)
        if isinstance(value, list) and _PLACE.fullmatch(step) and -len(value) <= int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            raise FormatError(f"column {path!r}: there is no {step!r} in {_kind(value)}")
    if value is None or value == "":
        raise FormatError(f"column {path!r} is empty")
    return value


def _kind(value: Any) -> str:
    match value:
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"a structure of {', '.join(map(repr, value)) or 'nothing'}"
        case bytes():
            return "bytes"
    return "text" if isinstance(value, str) else "a number"


def _filled(template: str, row: Row) -> str:
    found = RowTemplate(template)
    return found.substitute({name: _text(name, value_at(name, row)) for name in found.get_identifiers()})


def _text(path: str, value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return format(Decimal(repr(value)), "f").removesuffix(".0")
        case [{"role": _}, *_]:
            hint = f"; it is a conversation, which messages = {path!r} takes"
        case [_, *_]:
            hint = f"; name a part of it, such as ${{{path}.0}}"
        case dict() if value:
            hint = f"; name a part of it, such as ${{{path}.{next(iter(value))}}}"
        case float():
            raise FormatError(f"column {path!r} is {value}, which is no number")
        case _:
            hint = ""
    raise FormatError(f"column {path!r} is {_kind(value)}, and no text{hint}")


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
    path = folder / at_home(str(source.path))
    found = Lines()
    seen: dict[str, str] = {}
    harbor = task_folders(path)
    for place, task, row in _harbor(source, folder, harbor, found) if harbor else _all(source, path, found):
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


def _harbor(source: RowSource, root: Path, folders: list[Path], found: Lines) -> Iterator[tuple[str, Task, Row]]:
    for folder in folders:
        row, digest = harbor_row(root, folder)
        found.digest += digest
        try:
            fields_of = harbor_fields if source.workflow is None and source.formatter is None else formatter_of(source)
            yield str(folder), task_of(source, fields_of(row), folder.name), row
        except FormatError as error:
            raise DatasetError(f"{folder}: {error}") from error


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
