"""Tasks and examples from lines of JSON: what a file of them is, wherever one is read. Pure.

Failures: a line that is no such record, or repeats the id of an earlier one, is a :class:`BadLine` in its place; the
lines after it are read all the same. Blank lines are passed over.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from schemas.codec import decode
from schemas.errors import DecodeError, RecordError
from schemas.examples import Demonstration, Preference
from schemas.message import in_one_shape
from schemas.task import Task

_FRAME = {"schema", "schema_version"}
"""What a record may say of itself beside its fields."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record of its kind."""

    number: int
    """From 1."""
    reason: str


def parse[R: Task | Demonstration | Preference](
    lines: Iterable[bytes], kind: type[R], *, name: str | None = None
) -> Iterator[tuple[int, R] | BadLine]:
    """Return records and bad lines with their line numbers.

    Args:
        lines: With or without their ends.
        kind: Of all of them.
        name: Of the file: a line without an id gets one of this and its number. None: each has to have its own.
    """
    id_field = "task_id" if kind is Task else "example_id"
    seen: dict[str, int] = {}
    for number, written in enumerate(lines, 1):
        if not written.strip():
            continue
        line = written if name is None else _with_id(written, id_field, f"{name}:{number}")
        try:
            line = _in_one_shape(line)
            record = decode(line.strip(), kind)
            _refuse_unknown_fields(line, kind)
        except DecodeError as error:
            yield BadLine(number, f"{error.reason}: {error.detail}")
            continue
        except RecordError as error:
            yield BadLine(number, f"unknown_field: {error}")
            continue
        own_id = getattr(record, id_field)
        first = seen.setdefault(own_id, number)
        if first != number:
            yield BadLine(number, f"duplicate_id: {id_field} {own_id!r} is that of line {first} too")
            continue
        yield number, record


def _with_id(line: bytes, id_field: str, otherwise: str) -> bytes:
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return line  # and let it be refused
    return msgspec.json.encode({id_field: otherwise, **fields})


def _in_one_shape(line: bytes) -> bytes:
    """Return a line with messages and tools as records have them.

    Raises:
        DecodeError: They cannot be written so.
    """
    if b'"tool' not in line:
        return line
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return line  # and let it be refused
    try:
        return msgspec.json.encode(in_one_shape(fields)) if isinstance(fields, dict) else line
    except (ValueError, RecursionError) as error:
        raise DecodeError("bad_value", f"messages or tools cannot be read: {error}") from error


def _refuse_unknown_fields(line: bytes, kind: Callable[..., object]) -> None:
    """Raise RecordError where a field is misspelt: whoever wrote the line is a client, and would lose what it says."""
    fields = msgspec.json.decode(line)
    kind(**{name: value for name, value in fields.items() if name not in _FRAME})
