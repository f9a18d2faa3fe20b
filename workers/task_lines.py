"""Tasks from lines of JSON: what a file of tasks is, wherever one is read. Pure.

Failures: a line that is no task, or repeats the id of an earlier one, is a :class:`BadLine` in its place; the lines
after it are read all the same. Blank lines are passed over.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from schemas.codec import decode
from schemas.errors import DecodeError
from schemas.task import Task


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
        except DecodeError as error:
            yield BadLine(number, f"{error.reason}: {error.detail}")
            continue
        first = seen.setdefault(task.task_id, number)
        if first != number:
            yield BadLine(number, f"duplicate_id: task_id {task.task_id!r} is that of line {first} too")
            continue
        yield number, task
