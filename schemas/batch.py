"""Batches: the lifecycle of each group of tasks that is trained or evaluated together.

The record of a batch is written anew after each transition, keyed by batch id on a compacted topic. The FINALIZED
record carries the *manifest*: the experiences, by position in the log, that count. Nothing else is ever trained on.
A ``BatchSkipped`` behind it takes the batch back: it is not trained on either, and keeps its place in the order.

An *open* batch is one that was submitted without a number of tasks. Its tasks are handed out as they come, with the
newest weights; it takes no place in the order of training and is never FINALIZED: each task's result is on ``results``,
and the batch ends when its client aborts it.
"""

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from msgspec import Meta
from pydantic import BeforeValidator, Field

from schemas.event import Position
from schemas.experience import MAX_SAMPLES
from schemas.fields.free_form import MAX_ITEMS
from schemas.fields.items import AtLeastOne, DrawnBy, Item, Name
from schemas.record import (
    MAX_REASON_CHARS,
    MAX_SECONDS,
    BatchType,
    Count,
    Identifier,
    Metrics,
    Positive,
    Record,
    Version,
    VersionOrNone,
)
from schemas.task import MAX_REPEAT_TIMES

MAX_BATCH_TASKS = 16_384
# tasks whose lines of a manifest take a MiB at most, with two parts each; one MiB more is for all else
TASKS_PER_MIB = 1024
# Parts of all tasks of a batch together, so that its manifest can be sent. At least two of each task.
MAX_BATCH_PARTS = 32_768


class BatchLifecycleState(StrEnum):
    """Where a batch stands. The transitions are drawn in ``trinity_bus.coordination.batches.batch``."""

    PENDING = "pending"
    RUNNING = "running"
    FINALIZING = "finalizing"
    FINALIZED = "finalized"
    ABORTED = "aborted"


def _state(value: object) -> object:
    # Records are validated strictly, and strictly a string is not an enum member; on the wire it is all there is.
    return BatchLifecycleState(value) if type(value) is str else value


type BatchState = Annotated[BatchLifecycleState, BeforeValidator(_state)]

# all runs done; some, and that was enough; none that count, after all attempts; cut off with its batch
type TaskStatus = Literal["completed", "partial", "failed", "aborted"]


class ResultPart(Item, frozen=True, kw_only=True):
    """What one attempt gave to a task's result; of a group that is too large for one record, what one of them has.

    A task has one, unless it was split over attempts, or its group over records.
    """

    attempt: AtLeastOne
    samples: Annotated[int, Meta(ge=0, le=MAX_SAMPLES)]
    position: Position | None = None  # where its experiences lie; absent for eval batches


class ManifestEntry(Item, frozen=True, kw_only=True):
    """One accepted result."""

    task_id: Name
    status: TaskStatus
    # In the order of their run ids; none for failed and aborted tasks. Together they are one group.
    parts: Annotated[list[ResultPart], Meta(max_length=MAX_ITEMS)] = []  # noqa: RUF012 - msgspec gives each its own
    error: str | None = None  # the first error, or why it was cut off
    version_min: DrawnBy = -1
    version_max: DrawnBy = -1


class BatchRecord(Record):
    """A batch after a transition."""

    SCHEMA: ClassVar[str] = "batch"
    MAX_BYTES: ClassVar[int] = 16 << 20

    batch_id: Identifier
    batch_type: BatchType
    state: BatchState
    sequence: Count
    """Train batches: 1, 2, 3 ... in the order in which they are trained, given when all tasks of the batch are there; 0
    before. Smaller by one for each earlier batch that is aborted; final when FINALIZED. Eval and open batches, those
    that end without any task, and ABORTED ones: 0."""
    expected_task_count: Count | None = None
    """Absent: an open batch."""
    accepted_task_count: Count = 0
    completed_task_count: Count = 0
    """Tasks with a result, failed ones too."""
    failed_task_count: Count = 0
    aborted_task_count: Count = 0
    """Tasks that were cut off; not among the completed ones."""
    min_wait_num: Count | None = None
    """Completed tasks with which it may end."""
    min_version: Version = 0
    """What staleness control asked of the explorers."""
    manifest: Annotated[list[ManifestEntry], Field(max_length=MAX_BATCH_TASKS)] = Field(default_factory=list)
    """Filled in FINALIZED, and in ABORTED where partial results were to be kept; in the order in which the tasks were
    accepted."""
    metrics: Metrics = Field(default_factory=dict)
    """Aggregated, filled in FINALIZED."""
    reason: str | None = None
    """Why it was aborted."""
    trace_links: Annotated[list[str], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)
    """W3C ``traceparent`` of the rollouts that count, so that a train step can link to them."""


class BatchSkipped(Record):
    """An operator has said that a FINALIZED train batch is to be passed over: its step changes no weights.

    It stands beside the batch's own record, behind it, under a key of its own. A trainer carries it out unless it has
    trained on the batch.
    """

    SCHEMA: ClassVar[str] = "batch_skipped"

    batch_id: Identifier
    sequence: Positive
    """Of the batch."""
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)]
    client: Identifier
    """Who said so."""


# The one accepted answer to each task, keyed by task id, for whoever asked. Written by the coordinator, in the
# transaction that accepts it: a result on its topic counts, and will never be taken back or said twice. The experiences
# of a train task are durable before; ``parts`` tells where.
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


_ODD = re.compile(r"^[^A-Za-z0-9]|[^A-Za-z0-9._:/@-]")
_ESCAPE = re.compile(r"u:([0-9a-f]{2,6}):")


def escaped(batch_id: str) -> str:
    """Return the name on the log of a batch whose id may be any text: an identifier, but for its length.

    A character that no identifier has in its place, and ``#``, which ends the batch in the ids of its tasks, is written
    as ``u:<code point in hex>:``. So an id that is an identifier is its own name, and a name may be given for an id.

    >>> escaped("2/held out"), readable("2/heldu:20:out")
    ('2/heldu:20:out', '2/held out')
    """
    return _ODD.sub(lambda found: f"u:{ord(found[0]):02x}:", batch_id)


def readable(name: str) -> str:
    """Return the id of a batch, for people; what cannot be printed stays escaped."""
    return _ESCAPE.sub(_character, name)


def _character(found: re.Match[str]) -> str:
    code = int(found[1], 16)
    return chr(code) if code <= 0x10FFFF and chr(code).isprintable() else found[0]
