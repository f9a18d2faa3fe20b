"""Spans of sends, made by hand, because they must cover what happens until a record is durable.

Only records that begin or end a unit of work get one: tasks and experiences. Heartbeats, batches and changelogs would
bury the trace.
"""

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from schemas.event import Position
from schemas.experience import ExperienceGroup
from schemas.record import Record
from schemas.task import Task
from schemas.topic import Topic
from schemas.topics import EXPERIENCES, TASKS
from trinity_bus.telemetry import conventions as names

_TRACED = frozenset({TASKS.name, EXPERIENCES.name})
_TRACER = trace.get_tracer("trinity_bus.bus")


def start_send_span(
    topic: Topic,
    *,
    full_name: str,
    client_id: str,
    key: str | None,
    record: Record | ExperienceGroup,
    parent: Context | None,
) -> Span | None:
    """Return a started ``send <topic>`` span, where sends to this topic have one."""
    if topic.name not in _TRACED:
        return None
    attributes: dict[str, AttributeValue] = {
        names.MESSAGING_SYSTEM: "kafka",
        names.MESSAGING_OPERATION_NAME: "send",
        names.MESSAGING_OPERATION_TYPE: "send",
        names.MESSAGING_DESTINATION_NAME: full_name,
        names.MESSAGING_DESTINATION_TEMPLATE: topic.name,
        names.MESSAGING_CLIENT_ID: client_id,
        **_work(record),
    }
    if key is not None:
        attributes[names.MESSAGING_KAFKA_MESSAGE_KEY] = key
    return _TRACER.start_span(f"send {topic.name}", context=parent, kind=SpanKind.PRODUCER, attributes=attributes)


def end_send_span(span: Span, position: Position | None, error: BaseException | None) -> None:
    # with where the record lies, or with why it does not
    if position is not None:
        span.set_attribute(names.MESSAGING_DESTINATION_PARTITION_ID, str(position.partition))
        span.set_attribute(names.MESSAGING_KAFKA_OFFSET, position.offset)
    if error is not None:
        span.set_attribute(names.ERROR_TYPE, type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _work(record: Record | ExperienceGroup) -> dict[str, AttributeValue]:
    if isinstance(record, ExperienceGroup):
        return {
            names.RL_TASK_ID: record.task_id,
            names.RL_BATCH_ID: record.batch_id,
            names.RL_ATTEMPT: record.attempt,
            names.RL_SAMPLES: len(record),
        }
    if isinstance(record, Task):
        return {names.RL_TASK_ID: record.task_id, names.RL_BATCH_TYPE: record.batch_type}
    return {}
