"""Which sends are traced, and what their spans say."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from schemas.event import ExplorerLeft, Position
from schemas.task import Task
from schemas.topics import EXPLORER_EVENTS, TASKS
from tests.support.spans import recorded_spans
from trinity_bus.bus.write.delivery import end_send_span, start_send_span
from trinity_bus.errors import SendError

TASK = Task(task_id="t1", workflow="math", prompt="1 + 1")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    with recorded_spans(monkeypatch, "trinity_bus.bus.write.delivery") as exporter:
        yield exporter


def test_a_sent_task_has_a_span_with_its_place(spans: InMemorySpanExporter) -> None:
    span = start_send_span(TASKS, full_name="trinity.tasks", client_id="me", key="t1", record=TASK, parent=None)
    assert span is not None
    end_send_span(span, Position(partition=3, offset=9), None)
    (ended,) = spans.get_finished_spans()
    assert (ended.name, ended.kind) == ("send tasks", SpanKind.PRODUCER)
    assert ended.status.status_code is StatusCode.UNSET
    assert dict(ended.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "trinity.tasks",
        "messaging.destination.template": "tasks",
        "messaging.destination.partition.id": "3",
        "messaging.client.id": "me",
        "messaging.kafka.message.key": "t1",
        "messaging.kafka.offset": 9,
        "rl.task.id": "t1",
        "rl.batch.type": "train",
    }


def test_a_failed_send_is_an_error(spans: InMemorySpanExporter) -> None:
    span = start_send_span(TASKS, full_name="trinity.tasks", client_id="me", key="t1", record=TASK, parent=None)
    assert span is not None
    end_send_span(span, None, SendError("no room"))
    (ended,) = spans.get_finished_spans()
    assert ended.status.status_code is StatusCode.ERROR
    assert ended.status.description == "no room"
    assert (ended.attributes or {})["error.type"] == "SendError"


def test_events_are_not_traced(spans: InMemorySpanExporter) -> None:
    event = ExplorerLeft(explorer="e", incarnation="i")
    name = EXPLORER_EVENTS.full_name("x")
    assert start_send_span(EXPLORER_EVENTS, full_name=name, client_id="me", key="e", record=event, parent=None) is None
    assert spans.get_finished_spans() == ()
