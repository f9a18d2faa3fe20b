"""Traces, metrics and log lines, through OpenTelemetry."""

from trinity_bus.telemetry.jaeger import load_task_spans
from trinity_bus.telemetry.setup import Telemetry, setup_telemetry
from trinity_bus.telemetry.spans import (
    SpanRecord,
    as_current,
    links,
    load_spans,
    parent_context,
    span_context,
    traceparent,
)
from trinity_bus.telemetry.tree import TaskNotTracedError, tree_of_task

__all__ = [
    "SpanRecord",
    "TaskNotTracedError",
    "Telemetry",
    "as_current",
    "links",
    "load_spans",
    "load_task_spans",
    "parent_context",
    "setup_telemetry",
    "span_context",
    "traceparent",
    "tree_of_task",
]
