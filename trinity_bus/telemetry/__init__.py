"""Traces and metrics, through OpenTelemetry."""

from trinity_bus.telemetry.context import links, parent_context, span_context, traceparent

__all__ = ["links", "parent_context", "span_context", "traceparent"]
