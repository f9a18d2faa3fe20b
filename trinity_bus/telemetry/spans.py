"""Spans as lines of OTLP/JSON, one export request with one span each, and the spans of a run, read back from them.

This is the format of OpenTelemetry's file exporter (https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/):
a collector's ``otlpjsonfile`` receiver reads these files as they are. One span a line, appended whole: a process that
is killed loses what it had not written, and at most tears its last line.

Trace context travels as a W3C ``traceparent``, ``00-<trace id>-<span id>-<flags>``
(https://www.w3.org/TR/trace-context/). One that is malformed counts as absent: a sender's broken tracing must not stop
the work.
"""

import io
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AnyValue

from trinity_bus.runtime.plain_files import append_plain, open_plain
from trinity_bus.telemetry import conventions as names

_PROPAGATOR = TraceContextTextMapPropagator()
_FIELD = "traceparent"


def traceparent(span: Span | None = None) -> str | None:
    """Return the ``traceparent`` of a span, by default the current one; None where there is none."""
    if not (trace.get_current_span() if span is None else span).get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, None if span is None else trace.set_span_in_context(span, Context()))
    return carrier.get(_FIELD)


def parent_context(parent: str | None) -> Context:
    """Return a context to start spans in whose parent is ``parent``; a root where that is absent or malformed."""
    return Context() if parent is None else _PROPAGATOR.extract({_FIELD: parent}, Context())


def as_current(span: Span) -> AbstractContextManager[Span]:
    """Have a span be the current one in a block, and end with it."""
    # One of no trace, which is what there is where nothing is traced, need not be: OpenTelemetry's own way costs as
    # much for it as for any other.
    return trace.use_span(span, end_on_exit=True) if span.get_span_context().is_valid else nullcontext(span)


def span_context(parent: str | None) -> SpanContext | None:
    """Return what a ``traceparent`` names, or None where it is absent or malformed."""
    context = trace.get_current_span(parent_context(parent)).get_span_context()
    return context if context.is_valid else None


def links(parents: Iterable[str | None]) -> list[Link]:
    """Links to all that can be parsed, each once, in order."""
    found = (span_context(parent) for parent in parents)
    unique = {(context.trace_id, context.span_id): context for context in found if context is not None}
    return [Link(context) for context in unique.values()]


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


log = logging.getLogger(__name__)

TRACES = "traces"  # the folder of a run that has its spans, a file for each process
_ERROR = 2
_MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """One ended span."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16 hexadecimal digits
    parent_id: str | None = None
    name: str
    service: str = ""
    instance: str = ""
    start_ns: int  # since the Unix epoch, by the clock of its process
    end_ns: int
    error: str | None = None  # what went wrong, where its status is an error; maybe empty
    attributes: Mapping[str, AnyValue] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()  # (trace id, span id) of what it is linked to

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def load_spans(run_dir: Path) -> list[SpanRecord]:
    """All spans of a run that have been written so far, in the order of their start."""
    # A line that cannot be read, such as the last one of a killed process, is passed over and logged.
    spans = [span for path in sorted((run_dir / TRACES).glob("*.jsonl")) for span in _read(path)]
    return sorted(spans, key=lambda span: (span.start_ns, span.span_id))


def _read(path: Path) -> Iterator[SpanRecord]:
    with open_plain(path) as lines:
        for number in itertools.count(1):
            line = lines.readline(_MAX_LINE_BYTES)
            if not line:
                return
            try:
                yield from spans_of_request(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                log.warning("%s line %d is not a span (%s): passed over", path, number, error)


def spans_of_request(request: Mapping[str, Any]) -> Iterator[SpanRecord]:
    """Return the spans of one OTLP/JSON export request. Raises ValueError, KeyError, TypeError: it is none."""
    for resource_spans in request["resourceSpans"]:
        resource = _plain_attributes(resource_spans["resource"]["attributes"])
        for scope in resource_spans["scopeSpans"]:
            for span in scope["spans"]:
                status = span.get("status", {})
                yield SpanRecord(
                    trace_id=span["traceId"],
                    span_id=span["spanId"],
                    parent_id=span.get("parentSpanId") or None,
                    name=span["name"],
                    service=str(resource.get(names.SERVICE_NAME, "")),
                    instance=str(resource.get(names.SERVICE_INSTANCE_ID, "")),
                    start_ns=int(span["startTimeUnixNano"]),
                    end_ns=int(span["endTimeUnixNano"]),
                    error=status.get("message", "") if status.get("code") == _ERROR else None,
                    attributes=_plain_attributes(span.get("attributes", [])),
                    links=tuple((link["traceId"], link["spanId"]) for link in span.get("links", [])),
                )


def _plain_attributes(attributes: list[dict[str, Any]]) -> dict[str, AnyValue]:
    return {attribute["key"]: plain_value(attribute["value"]) for attribute in attributes}
