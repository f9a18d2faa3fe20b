"""What was read and decided and is not committed yet, its spans, and errors that an input causes.

If the machine, or writing its effects, raises an exception, that is a bug of this program, because every record that
can be decoded can be handled. But the log keeps the input, and a program that ends at it would end at it again after
each start. So the input is refused as a dead letter with the traceback::

    exception --> the transaction in progress, if any, is awaited
              --> the machine is discarded, and restored from the entries of the last commit
              --> each input since then, separately:  handle and commit
                                                      exception --> restore again; dead letter, commit

Exceptions of the log or its client are different: it is then unknown what is committed, and the process becomes a
standby again.

Spans are ``process tasks``, ``dispatch`` and ``announce version``. ``process tasks`` and every ``dispatch`` of a task
are children of whoever sent it, so they belong together even when a restart lies between them; the context of a
dispatch goes to the explorer, that of an announcement to whoever takes the weights. A span ends when the transaction is
committed: what was aborted has not happened.
"""

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from schemas import Cancel, Dispatch, ModelVersion, RunnersReport, Task
from schemas.errors import one_line
from schemas.topics import COMMANDS, OPERATOR_COMMANDS, TASKS
from trinity_bus.bus import Received, Undecodable
from trinity_bus.coordination import (
    CommandArrived,
    ContributionArrived,
    Effect,
    EventArrived,
    Input,
    Origin,
    TaskArrived,
)
from trinity_bus.errors import BusError, RecordTooLargeError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import parent_context, span_context, traceparent

_TRACER = trace.get_tracer("workers.coordinator")
# Twice what any version of it has. It is kept with the task and comes back in batches, so its size matters.
MAX_TRACEPARENT = 128


def sound(context: str | None) -> str | None:
    """Return a ``traceparent`` from a header, if it can be one."""
    return context if context is not None and len(context) <= MAX_TRACEPARENT and span_context(context) else None


class Spans:
    def __init__(self, namespace: str) -> None:
        self._open: list[Span] = []
        self._tasks = TASKS.full_name(namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for span in self._open:
            if error is not None:
                span.set_attribute(names.ERROR_TYPE, type(error).__name__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
            span.end()

    def process(self, received: Received[Any], task: Task) -> Span:
        return self._start(
            f"process {TASKS.name}",
            received.traceparent,
            {
                names.MESSAGING_SYSTEM: "kafka",
                names.MESSAGING_OPERATION_NAME: "process",
                names.MESSAGING_OPERATION_TYPE: "process",
                names.MESSAGING_DESTINATION_NAME: self._tasks,
                names.MESSAGING_DESTINATION_TEMPLATE: TASKS.name,
                names.MESSAGING_DESTINATION_PARTITION_ID: str(received.partition),
                names.MESSAGING_KAFKA_OFFSET: received.offset,
                names.RL_TASK_ID: task.task_id,
                names.RL_WORKFLOW: task.workflow,
            },
            SpanKind.CONSUMER,
        )

    def dispatch(self, record: Dispatch | Cancel, parent: str | None) -> Span:
        task_id = record.task.task_id if isinstance(record, Dispatch) else record.task_id
        attributes: dict[str, Any] = {
            names.RL_TASK_ID: task_id,
            names.RL_ATTEMPT: record.attempt,
            names.RL_EXPLORER: record.explorer,
        }
        if isinstance(record, Dispatch):
            attributes |= {names.RL_BATCH_ID: record.batch_id, names.RL_BATCH_TYPE: record.batch_type}
        return self._start(
            "dispatch" if isinstance(record, Dispatch) else "cancel", parent, attributes, SpanKind.PRODUCER
        )

    def announce(self, record: ModelVersion, parent: str | None) -> Span:
        attributes = {
            names.RL_MODEL: record.model,
            names.RL_MODEL_VERSION: record.version,
            names.RL_STEP: record.step,
            names.RL_WEIGHT_SYNC_EPOCH: record.epoch,
        }
        return self._start("announce version", parent, attributes, SpanKind.PRODUCER)

    def _start(self, name: str, parent: str | None, attributes: dict[str, Any], kind: SpanKind) -> Span:
        span = _TRACER.start_span(name, context=parent_context(parent), kind=kind, attributes=attributes)
        self._open.append(span)
        return span


REASON = "not_handled"
_FRAMES = 12


def is_input_error(error: BaseException) -> bool:
    if not isinstance(error, Exception):
        return False
    return isinstance(error, RecordTooLargeError) or not isinstance(error, BusError)


def with_traceback(error: BaseException) -> str:
    """Return an error with its traceback, innermost first, as one line."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return f"{one_line(f'{type(error).__name__}: {error}')} at {' < '.join(_places(frames))}"


def _places(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames][:_FRAMES]


@dataclass(slots=True)
class PendingCommit:
    spans: Spans
    effects: list[Effect] = field(default_factory=list)  # in the order of the decisions
    unreadable: list[Received[Any]] = field(default_factory=list)
    # What the machine could not decide upon, and why.
    failed_inputs: list[tuple[Received[Any], str]] = field(default_factory=list)
    originals: dict[Origin, Received[Any]] = field(default_factory=dict)  # tasks as they came
    received: list[Received[Any]] = field(default_factory=list)  # all that it is made of, in the order of the decisions

    def take(self, received: Sequence[Received[Any]]) -> tuple[list[Input], int, int]:
        """Note what was read. Return what the machine decides upon, and how many tasks are among it, of how many bytes.

        Reports of runners are for people, and what cannot be read for nobody.
        """
        # All before any is looked at: whatever is raised then, it is decided upon again.
        self.received += received
        inputs: list[Input] = []
        tasks = task_bytes = 0
        for item in received:
            topic, record, context = item.topic, item.record, sound(item.traceparent)
            if topic is TASKS:
                tasks, task_bytes = tasks + 1, task_bytes + len(item.raw)
            # By topic, each of which has its own types: to ask a record of which of many types it is takes longer.
            if isinstance(record, Undecodable):
                self.unreadable.append(item)
            elif topic is TASKS:
                origin = Origin(item.partition, item.offset)
                self.originals[origin] = item
                span = self.spans.process(item, record)
                inputs.append(TaskArrived(record, origin, context or traceparent(span)))
            elif isinstance(record, ContributionArrived):
                inputs.append(msgspec.structs.replace(record, traceparent=sound(record.traceparent)))
            elif topic is COMMANDS or topic is OPERATOR_COMMANDS:
                inputs.append(CommandArrived(record, context, topic is OPERATOR_COMMANDS))
            elif type(record) is not RunnersReport:
                inputs.append(EventArrived(record, context))
        return inputs, tasks, task_bytes
