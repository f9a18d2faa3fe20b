"""Tasks from lines of JSON: what a file of tasks is, wherever one is read. Pure.

Failures: a line that is no task, or repeats the id of an earlier one, is a :class:`BadLine` in its place; the lines
after it are read all the same. Blank lines are passed over.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from schemas.codec import decode
from schemas.errors import DecodeError, RecordError
from schemas.task import Task

_FRAME = {"schema", "schema_version"}
"""What a record may say of itself beside its fields."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no task."""

    number: int
    """From 1."""
    reason: str


def parse(lines: Iterable[bytes]) -> Iterator[tuple[int, Task] | BadLine]:
    """Tasks and bad lines with their line numbers.

    Args:
        lines: With or without their ends.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = decode(line.strip(), Task)
            _refuse_unknown_fields(line)
        except DecodeError as error:
            yield BadLine(number, f"{error.reason}: {error.detail}")
            continue
        except RecordError as error:
            yield BadLine(number, f"unknown_field: {error}")
            continue
        first = seen.setdefault(task.task_id, number)
        if first != number:
            yield BadLine(number, f"duplicate_id: task_id {task.task_id!r} is that of line {first} too")
            continue
        yield number, task


def _refuse_unknown_fields(line: bytes) -> None:
    """Raise RecordError where a field is misspelt: whoever wrote the line is a client, and would lose what it says."""
    fields = msgspec.json.decode(line)
    Task(**{name: value for name, value in fields.items() if name not in _FRAME})
