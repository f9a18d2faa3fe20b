"""Trace context as it travels: W3C ``traceparent`` strings to and from OpenTelemetry's objects.

A ``traceparent`` is ``00-<trace id>-<span id>-<flags>`` (https://www.w3.org/TR/trace-context/). One that is malformed
counts as absent: a sender's broken tracing must not stop the work.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

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
