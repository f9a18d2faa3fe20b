"""What a caller of ``Scheduler`` gets for its tasks, and which tasks the coordinator refuses."""

from dataclasses import dataclass, field
from typing import Any, Final

from schemas import TaskResult
from schemas.record import Metrics
from schemas.topic import DLQ_DETAIL, DLQ_REASON, DLQ_TOPIC
from schemas.topics import TASKS
from trinity_bus.bus import Received
from trinity_bus.bus.read.received import header
from trinity_bus.client.ids import BatchId

CLEANUP = "Remaining runs were cancelled during scheduler cleanup."
_DUPLICATE: Final = "duplicate_task"


@dataclass(slots=True)
class Status:
    """How a task went."""

    completed_runs: int
    total_runs: int
    metrics: list[Metrics]
    """One map: of the task, reduced over its runs. Of one that has failed its time alone: a failure is no reward of
    zero."""
    message: str | None = None
    """What went wrong; None where every run was completed."""

    @property
    def ok(self) -> bool:
        """Whether every run was completed."""
        return self.completed_runs == self.total_runs


@dataclass(slots=True)
class CompletedTaskResult:
    """A task's result. A task that has failed has one too."""

    batch_id: BatchId
    task_id: str
    """As it was given."""
    status: Status
    experience_payloads: list[bytes] = field(default_factory=list)
    """One ``ExperienceGroup``, encoded, for each part of the task that gave one; see ``schemas.ResultPart``."""


def status_of(result: TaskResult) -> Status:
    return Status(
        completed_runs=result.completed_runs,
        total_runs=result.total_runs,
        metrics=[dict(result.metrics)],
        message=_message(result),
    )


def refused(total_runs: int, why: str) -> Status:
    return Status(0, total_runs, [{}], f"0/{total_runs} runs completed successfully. First error: {why}")


def _message(result: TaskResult) -> str | None:
    if result.completed_runs == result.total_runs:
        return None
    start = f"{result.completed_runs}/{result.total_runs} runs completed successfully."
    error = result.error or "the coordinator does not say"
    return f"{start} {CLEANUP}" if CLEANUP in error else f"{start} First error: {error}"


@dataclass(frozen=True, slots=True)
class Rejection:
    task_name: str  # its id on the log
    why: str


def rejection_of(letter: Received[Any]) -> Rejection | None:
    """Return what a dead letter says of a task; None where it is of something else.

    A task that came twice is refused once and run once: of that, too, nothing is said.
    """
    reason = header(letter.headers, DLQ_REASON)
    if header(letter.headers, DLQ_TOPIC) != TASKS.name or letter.key is None or reason in {None, _DUPLICATE}:
        return None
    return Rejection(letter.key, f"{reason}: {header(letter.headers, DLQ_DETAIL) or 'see the dead letters'}")
