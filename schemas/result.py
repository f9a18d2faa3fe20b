"""Results: the one accepted answer to each task, keyed by task id, for whoever asked.

Written by the coordinator, in the transaction that accepts it: a result on this topic counts, and will never be taken
back or said twice. The experiences of a train task are durable before; ``parts`` tells where.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.batch import ResultPart, TaskStatus
from schemas.numbers import MAX_SECONDS, Count, Positive, VersionOrNone
from schemas.record import BatchType, Identifier, Metrics, Record
from schemas.task import MAX_REPEAT_TIMES


class TaskResult(Record):
    """How a task ended."""

    SCHEMA: ClassVar[str] = "task_result"

    task_id: Identifier
    batch_id: Identifier
    batch_type: BatchType
    status: TaskStatus
    completed_runs: Count
    total_runs: Positive
    parts: Annotated[list[ResultPart], Field(max_length=MAX_REPEAT_TIMES)] = Field(default_factory=list)
    metrics: Metrics = Field(default_factory=dict)
    """Of the task, reduced over its runs; empty for failed and aborted ones."""
    version_min: VersionOrNone = -1
    version_max: VersionOrNone = -1
    seconds: Annotated[float, Field(ge=0, le=MAX_REPEAT_TIMES * MAX_SECONDS, allow_inf_nan=False)] = 0.0
    """That its counted attempts took, together."""
    attempts: Count
    """How many were started."""
    error: str | None = None
    """The first error, or why it was cut off."""
