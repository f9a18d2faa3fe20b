import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.support.narrowing import some
from trinity_bus.telemetry import as_current, links, parent_context, span_context, traceparent

ONE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TWO = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00"


def test_a_span_becomes_a_string_and_back_and_is_the_current_one_in_its_block() -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    assert traceparent() is None
    with tracer.start_as_current_span("outer") as outer:
        text = traceparent()
        inner = tracer.start_span("inner", context=parent_context(text))
        assert text == traceparent(outer)
    found = some(span_context(text))
    assert (found.trace_id, found.span_id) == (outer.get_span_context().trace_id, outer.get_span_context().span_id)
    assert inner.get_span_context().trace_id == found.trace_id
    assert found.is_remote
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with as_current(tracer.start_span("x", context=parent_context(None))) as span:
        assert traceparent() == traceparent(span)
        assert span.is_recording()
    assert not span.is_recording()
    assert traceparent() is None


@pytest.mark.parametrize("broken", [None, "", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", ONE[:-4]])
def test_a_broken_parent_is_none(broken: str | None) -> None:
    assert span_context(broken) is None
    with trace.use_span(trace.NonRecordingSpan(trace.get_current_span(parent_context(ONE)).get_span_context())):
        current = trace.get_current_span(parent_context(broken)).get_span_context()
    assert not current.is_valid, "a new root, whatever span happens to be current"


def test_links_are_the_parsable_ones_each_once() -> None:
    found = links([ONE, None, "nonsense", TWO, ONE])
    assert [trace.format_span_id(link.context.span_id) for link in found] == ["b7ad6b7169203331", "00f067aa0ba902b7"]


@pytest.mark.parametrize("parent", [None, ONE])
def test_where_nothing_is_traced_what_came_in_is_handed_on(parent: str | None) -> None:
    with as_current(trace.NoOpTracer().start_span("x", context=parent_context(parent))):
        assert traceparent() == parent
