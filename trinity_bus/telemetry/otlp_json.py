"""Spans as lines of OTLP/JSON, one export request with one span each.

This is the format of OpenTelemetry's file exporter (https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/):
a collector's ``otlpjsonfile`` receiver reads these files as they are. One span a line, appended whole: a process that
is killed loses what it had not written, and at most tears its last line.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, format_span_id, format_trace_id
from opentelemetry.util.types import AnyValue

# OTLP's numbers
KINDS = {
    SpanKind.INTERNAL: 1,
    SpanKind.SERVER: 2,
    SpanKind.CLIENT: 3,
    SpanKind.PRODUCER: 4,
    SpanKind.CONSUMER: 5,
}


class JsonLinesSpanExporter(SpanExporter):
    """Appends spans to a file. The file and its folder are made with the first span."""

    def __init__(self, path: Path) -> None:
        self._file = _Lines(path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._file.append(json.dumps(span_to_json(span), separators=(",", ":")) for span in spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._file.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class JsonLinesMetricExporter(MetricExporter):
    """Appends the state of all metrics to a file, one line per export, in the SDK's own JSON."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = _Lines(path)

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,
        **kwargs: Any,
    ) -> MetricExportResult:
        self._file.append([metrics_data.to_json(indent=None)])
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._file.close()

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True


class _Lines:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def append(self, lines: Iterator[str] | Sequence[str]) -> None:
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        rest = memoryview("".join(f"{line}\n" for line in lines).encode())
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


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
