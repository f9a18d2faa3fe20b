"""The spans of a run, read back from its files."""

import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.util.types import AnyValue

from trinity_bus.runtime.plain_files import open_plain
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.otlp_json import plain_value

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
        resource = _attributes(resource_spans["resource"]["attributes"])
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
                    attributes=_attributes(span.get("attributes", [])),
                    links=tuple((link["traceId"], link["spanId"]) for link in span.get("links", [])),
                )


def _attributes(attributes: list[dict[str, Any]]) -> dict[str, AnyValue]:
    return {attribute["key"]: plain_value(attribute["value"]) for attribute in attributes}
