"""The coordinator's spans: ``process tasks``, ``dispatch`` and ``announce version``.

``process tasks`` and every ``dispatch`` of a task are children of whoever sent it, so they belong together even when a
restart lies between them; the context of a dispatch goes to the explorer, that of an announcement to whoever takes the
weights. A span ends when the transaction is committed: what was aborted has not happened.
"""

from types import TracebackType
from typing import Any, Self

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from schemas import Cancel, Dispatch, ModelVersion, Task
from schemas.topics import TASKS
from trinity_bus.bus import Received
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import parent_context, span_context

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
