"""Spans as lines of OTLP/JSON, one export request with one span each.

This is the format of OpenTelemetry's file exporter (https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/):
a collector's ``otlpjsonfile`` receiver reads these files as they are. One span a line, appended whole: a process that
is killed loses what it had not written, and at most tears its last line.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.trace import SpanContext, SpanKind, format_span_id, format_trace_id
from opentelemetry.util.types import AnyValue

from trinity_bus.runtime.plain_files import append_plain

# OTLP's numbers
KINDS = {
    SpanKind.INTERNAL: 1,
    SpanKind.SERVER: 2,
    SpanKind.CLIENT: 3,
    SpanKind.PRODUCER: 4,
    SpanKind.CONSUMER: 5,
}


def span_lines(path: Path) -> ConsoleSpanExporter:
    """Return what appends spans to a file."""
    return ConsoleSpanExporter(
        out=_Lines(path), formatter=lambda span: json.dumps(span_to_json(span), separators=(",", ":")) + "\n"
    )


def metric_lines(path: Path) -> ConsoleMetricExporter:
    """Return what appends the state of all metrics to a file, one line per export, in the SDK's own JSON."""
    return ConsoleMetricExporter(out=_Lines(path), formatter=lambda data: data.to_json(indent=None) + "\n")


class _Lines(io.StringIO):
    # Appends to a file what was written since it was flushed last. File and folder are made with the first line.

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def flush(self) -> None:
        lines = self.getvalue().encode()
        self.seek(0)
        self.truncate()
        if lines:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with append_plain(self._path) as file:
                file.write(lines)


def span_to_json(span: ReadableSpan) -> dict[str, Any]:
    context, scope = span.get_span_context(), span.instrumentation_scope
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    fields: dict[str, Any] = {
        **_ids(context),
        "name": span.name,
        "kind": KINDS[span.kind],
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes or {}),
        "events": [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes or {}),
            }
            for event in span.events
        ],
        "links": [{**_ids(link.context), "attributes": _attributes(link.attributes or {})} for link in span.links],
        # The API's codes (unset 0, ok 1, error 2) are OTLP's.
        "status": {"code": span.status.status_code.value, "message": span.status.description or ""},
    }
    if span.parent is not None:
        fields["parentSpanId"] = format_span_id(span.parent.span_id)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(span.resource.attributes)},
                "scopeSpans": [{"scope": {"name": scope.name if scope is not None else ""}, "spans": [fields]}],
            }
        ]
    }


def _ids(context: SpanContext) -> dict[str, str]:
    return {"traceId": format_trace_id(context.trace_id), "spanId": format_span_id(context.span_id)}


def _attributes(attributes: Mapping[str, AnyValue]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: AnyValue) -> dict[str, Any]:
    result: dict[str, Any]
    match value:
        case bool():
            result = {"boolValue": value}
        case int():
            # 64-bit integers are strings in JSON's mapping of protobuf.
            result = {"intValue": str(value)}
        case float():
            result = {"doubleValue": value}
        case str():
            result = {"stringValue": value}
        case Mapping():
            result = {"kvlistValue": {"values": _attributes(value)}}
        case None | bytes():
            # Legal, of no use to a reader of traces, and shown as they print.
            result = {"stringValue": repr(value)}
        case _:
            result = {"arrayValue": {"values": [_value(item) for item in value]}}
    return result


def plain_value(value: Mapping[str, Any]) -> AnyValue:
    """Return the attribute value that an OTLP/JSON one stands for; ValueError where it stands for none."""
    match dict(value):
        case {"stringValue": str(text)}:
            return text
        case {"intValue": str() | int() as number}:
            return int(number)
        case {"doubleValue": float() | int() as number}:
            return float(number)
        case {"boolValue": bool(flag)}:
            return flag
        case {"arrayValue": {"values": list(items)}}:
            return [plain_value(item) for item in items]
        case {"kvlistValue": {"values": list(items)}}:
            return {item["key"]: plain_value(item["value"]) for item in items}
    raise ValueError(f"not an attribute value: {value!r}")
