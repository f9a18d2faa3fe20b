"""What a caller gets for its tasks, and which tasks the coordinator refuses."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemas import Task, TaskResult
from schemas.record import Metrics
from schemas.topics import TASKS
from trinity_bus.bus import Received
from trinity_bus.bus.read.dead_letters import refusal_of
from trinity_bus.client.ids import BatchId, batch_of_task

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
    completed, total = result.completed_runs, result.total_runs
    error = result.error or "the coordinator does not say"
    what = CLEANUP if CLEANUP in error else f"First error: {error}"
    message = None if completed == total else f"{completed}/{total} runs completed successfully. {what}"
    return Status(completed, total, [dict(result.metrics)], message)


def refused(task: Task, why: str, default_runs: int = 1) -> TaskResult:
    """Return the result of a task that the coordinator has not accepted."""
    return TaskResult(
        task_id=task.task_id,
        batch_id=batch_of_task(task.task_id),
        batch_type=task.batch_type,
        status="failed",
        completed_runs=0,
        total_runs=task.repeat_times or default_runs,
        attempts=0,
        error=why,
    )


class Rejection(NamedTuple):
    task_id: str  # on the log
    why: str


def rejection_of(letter: Received[Any]) -> Rejection | None:
    """Return what a dead letter says of a task; None where it is of something else, or of a task that came twice."""
    # Such a task is refused once and run once.
    found = refusal_of(letter)
    if found.topic != TASKS.name or letter.key is None or found.reason in {"?", _DUPLICATE}:
        return None
    return Rejection(letter.key, f"{found.reason}: {found.detail or 'see the dead letters'}")
