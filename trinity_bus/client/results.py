"""What a caller gets for its tasks, and what is known of one batch of a ``Scheduler``. Pure: no clock, no client.

A task's lifecycle in a ``BatchTracker``::

    SCHEDULED --its result, or its refusal, is read--> READY --taken--> gone
        '-----the batch is cleaned up without it-----------------------^

A wait is over when no task is without a result; when ``min_num`` results are there to be taken, and have been for
``wait_after_min_s``; or when its time is up.

Everything is counted over what has not been taken yet. So a wait after some results were taken waits for the others,
and one where nothing is left ends at once, where the reference would count what was taken as missing.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemas import Position, Task, TaskResult
from schemas.record import BatchType, Metrics
from schemas.topics import TASKS
from trinity_bus.bus import Received
from trinity_bus.bus.read.received import refusal_of
from trinity_bus.client.tasks import BatchId, batch_of_task, given_task_id

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


@dataclass(slots=True)
class TaskWrapper:
    """A task that was scheduled, and what became of it."""

    task: Task  # as it stands on the log
    order: int  # of its scheduling
    status: Status | None = None  # when it is READY
    positions: list[Position] = field(default_factory=list)  # where its experiences lie

    @property
    def task_id(self) -> str:
        # as it was given
        return given_task_id(self.task.task_id)


class BatchTracker:
    # ``default_runs``: of a task that names no number, to be told of one that was refused.

    def __init__(self, batch_id: BatchId, default_runs: int = 1) -> None:
        self.batch_id = batch_id
        self.finished = 0  # results so far, taken ones too
        self._default_runs = default_runs
        self._scheduled = 0
        self._outstanding: dict[str, TaskWrapper] = {}
        self._ready: dict[str, TaskWrapper] = {}

    @property
    def outstanding(self) -> Iterable[str]:
        # Ids on the log of the tasks that have no result yet.
        return self._outstanding.keys()

    @property
    def unfinished(self) -> int:
        return len(self._outstanding)

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def empty(self) -> bool:
        return not self._outstanding and not self._ready

    def schedule(self, tasks: Iterable[Task]) -> None:
        # As they stand on the log, with ids that were not used before.
        for task in tasks:
            self._outstanding[task.task_id] = TaskWrapper(task, self._scheduled)
            self._scheduled += 1

    def accept(self, ended: TaskResult | Rejection) -> bool:
        """Note how a task has ended. Return whether it was waited for; a second word about the same task is not."""
        wrapper = self._outstanding.pop(ended.task_id, None)
        if wrapper is None:
            return False
        result = refused(wrapper.task, ended.why, self._default_runs) if isinstance(ended, Rejection) else ended
        wrapper.status = status_of(result)
        wrapper.positions = [part.position for part in result.parts if part.position is not None]
        self._ready[ended.task_id] = wrapper
        self.finished += 1
        return True

    def give_up(self, task_names: Iterable[str]) -> None:
        # Those that have a result are left alone.
        for name in task_names:
            self._outstanding.pop(name, None)

    def completed(self) -> list[TaskWrapper]:
        # What is READY, in the order of scheduling. Nothing is taken.
        return sorted(self._ready.values(), key=lambda wrapper: wrapper.order)

    def take(self, wrappers: Sequence[TaskWrapper]) -> None:
        for wrapper in wrappers:
            self._ready.pop(wrapper.task.task_id, None)


@dataclass(slots=True, eq=False)
class OpenBatch:
    # One batch on the log.
    name: str
    batch_type: BatchType
    task_names: set[str] = field(default_factory=set)
    submitted: bool = False
    closing: bool = False
    sending: asyncio.Task[None] | None = None  # the last ``schedule`` of it; each waits for the one before


@dataclass(slots=True, eq=False)
class ScheduledBatch:
    # One batch as its caller knows it.
    tracker: BatchTracker
    open: OpenBatch | None = None
    failure: Exception | None = None  # why not all of its tasks are on the log
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)  # whoever takes results has it
