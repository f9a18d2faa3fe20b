"""Spans without what was said: for a process whose errors may quote a model's answer, or a task.

OpenTelemetry notes an exception that ends a span with its message and its traceback, as an event and as the status.
What is left of these is the type of the exception, and that there was an error.
"""

from collections.abc import Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status

_EXCEPTION = "exception"
_TYPE = "exception.type"


class DiscreetSpanExporter(SpanExporter):
    """Passes spans on without the texts of errors."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([_without_texts(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _without_texts(span: ReadableSpan) -> ReadableSpan:
    if not span.status.description and not any(event.name == _EXCEPTION for event in span.events):
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[_type_alone(event) if event.name == _EXCEPTION else event for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _type_alone(event: Event) -> Event:
    kept = {name: value for name, value in (event.attributes or {}).items() if name == _TYPE}
    return Event(event.name, kept, event.timestamp)
