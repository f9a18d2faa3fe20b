"""Spans that end, for who looks at them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@contextmanager
def recorded_spans(monkeypatch: pytest.MonkeyPatch, module: str) -> Iterator[InMemorySpanExporter]:
    """Those of a module's own tracer, ``_TRACER``."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(f"{module}._TRACER", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()
