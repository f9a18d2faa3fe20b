from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from schemas import Sampling
from tests.support.spans import recorded_spans
from trinity_bus.inference.errors import RequestRefusedError
from trinity_bus.inference.sampling import sampling_arguments
from trinity_bus.inference.tracing import answered, request_span

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    with recorded_spans(monkeypatch, "trinity_bus.inference.tracing") as exporter:
        yield exporter


def test_a_request_is_told_in_the_names_of_the_conventions(spans: InMemorySpanExporter) -> None:
    arguments = sampling_arguments(Sampling(temperature=0.0, seed=5), 2, temperature=1.0, max_tokens=16)
    # In place of vLLM's, with the fields that are read; an e2e test has the real ones.
    responses = [SimpleNamespace(token_ids=[1] * 4, finish_reason="stop"), SimpleNamespace(token_ids=[1] * 3)]
    responses[1].finish_reason = "length"
    metrics = SimpleNamespace(first_token_latency=0.5, queued_ts=1.0, scheduled_ts=1.25)
    with request_span("Qwen3-0.6B", 3, arguments, PARENT) as open_span:
        answered(open_span, SimpleNamespace(outputs=responses, metrics=metrics))
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind) == ("text_completion Qwen3-0.6B", SpanKind.CLIENT)
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "Qwen3-0.6B",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.seed": 5,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.response.time_to_first_chunk": 0.5,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 7,
        "rl.engine.queue_s": 0.25,
    }


def test_a_request_that_fails_is_an_error_with_its_type(spans: InMemorySpanExporter) -> None:
    def refuse() -> None:
        with request_span("m", 600, sampling_arguments(Sampling(), 1, temperature=1.0, max_tokens=16), None):
            raise RequestRefusedError("too long")

    with pytest.raises(RequestRefusedError):
        refuse()
    (span,) = spans.get_finished_spans()
    assert span.parent is None
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "RequestRefusedError"
