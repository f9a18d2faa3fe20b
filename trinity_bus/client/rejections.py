"""Tasks that the coordinator refuses, as its dead letters tell of them."""

from dataclasses import dataclass
from typing import Any, Final

from schemas.headers import DLQ_DETAIL, DLQ_REASON, DLQ_TOPIC
from schemas.topics import TASKS
from trinity_bus.bus import Received
from trinity_bus.bus.received import header

_DUPLICATE: Final = "duplicate_task"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A task that will not be run."""

    task_name: str
    """Its id on the log."""
    why: str


def rejection_of(letter: Received[Any]) -> Rejection | None:
    """Return what a dead letter says of a task; None where it is of something else.

    A task that came twice is refused once and run once: of that, too, nothing is said.
    """
    reason = header(letter.headers, DLQ_REASON)
    if header(letter.headers, DLQ_TOPIC) != TASKS.name or letter.key is None or reason in {None, _DUPLICATE}:
        return None
    return Rejection(letter.key, f"{reason}: {header(letter.headers, DLQ_DETAIL) or 'see the dead letters'}")
