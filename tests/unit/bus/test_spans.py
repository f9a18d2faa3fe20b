"""Which sends are traced, and what their spans say."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from schemas.event import ExplorerLeft, Position
from schemas.task import Task
from schemas.topics import EXPLORER_EVENTS, TASKS
from tests.support.spans import recorded_spans
from trinity_bus.bus.write.delivery import end_send_span, start_send_span
from trinity_bus.errors import SendError

SENT: dict[str, Any] = {"full_name": "trinity.tasks", "client_id": "me", "key": "t1", "parent": None}
SAID = {
    "messaging.system": "kafka",
    "messaging.operation.name": "send",
    "messaging.operation.type": "send",
    "messaging.destination.name": "trinity.tasks",
    "messaging.destination.template": "tasks",
    "messaging.client.id": "me",
    "messaging.kafka.message.key": "t1",
    "rl.task.id": "t1",
    "rl.batch.type": "train",
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    with recorded_spans(monkeypatch, "trinity_bus.bus.write.delivery") as exporter:
        yield exporter


@pytest.mark.parametrize(
    ("position", "error", "status", "more"),
    [
        (
            Position(partition=3, offset=9),
            None,
            (StatusCode.UNSET, None),
            {"messaging.destination.partition.id": "3", "messaging.kafka.offset": 9},
        ),
        (None, SendError("no room"), (StatusCode.ERROR, "no room"), {"error.type": "SendError"}),
    ],
)
def test_a_sent_task_has_a_span_with_its_place_or_its_error(
    spans: InMemorySpanExporter, position: Any, error: Any, status: tuple[Any, Any], more: dict[str, Any]
) -> None:
    span = start_send_span(TASKS, record=Task(task_id="t1", workflow="math", prompt="1 + 1"), **SENT)
    assert span is not None
    end_send_span(span, position, error)
    (ended,) = spans.get_finished_spans()
    assert (ended.name, ended.kind) == ("send tasks", SpanKind.PRODUCER)
    assert (ended.status.status_code, ended.status.description) == status
    assert dict(ended.attributes or {}) == SAID | more


def test_events_are_not_traced(spans: InMemorySpanExporter) -> None:
    assert start_send_span(EXPLORER_EVENTS, record=ExplorerLeft(explorer="e", incarnation="i"), **SENT) is None
    assert spans.get_finished_spans() == ()
