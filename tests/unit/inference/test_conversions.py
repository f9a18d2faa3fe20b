"""The pure parts: sampling parameters, completions, version spans, cores, spans of requests. vLLM is not imported."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from schemas import Sampling, StructuredOutputs
from tests.support.fakes.experiences import kept_of
from tests.support.narrowing import some
from tests.support.spans import recorded_spans
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference import engine as engine_module
from trinity_bus.inference.completion import EngineCompletion, completion_of, told_kept, version_spans
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.inference.errors import GenerationError, RequestRefusedError
from trinity_bus.inference.launch import parse_cores
from trinity_bus.inference.sampling import sampling_arguments
from trinity_bus.inference.tracing import answered, request_span


def span(version: str, start: int, end: int) -> SimpleNamespace:
    return SimpleNamespace(version=version, start=start, end=end)


def output(token_ids: list[int], **changes: Any) -> SimpleNamespace:
    fields = {
        "token_ids": token_ids,
        "logprobs": SimpleNamespace(token_ids=list(token_ids), logprobs=[-0.1] * len(token_ids)),
        "finish_reason": "stop",
        "weight_versions": [span("3", 0, len(token_ids))],
    }
    return SimpleNamespace(**(fields | changes))


def test_absent_wishes_take_the_defaults_and_present_ones_win() -> None:
    plain = sampling_arguments(Sampling(), 4, temperature=0.7, max_tokens=9)
    assert (plain["n"], plain["temperature"], plain["max_tokens"]) == (4, 0.7, 9)
    assert "top_p" not in plain
    assert plain["detokenize"] is False
    wished = Sampling(
        temperature=0.0, top_p=0.5, max_tokens=1, stop=["."], min_p=0.1, ignore_eos=True, logit_bias={"5": 2.0},
        bad_words=[], structured_outputs=StructuredOutputs(json_schema={"type": "object"}),
    )  # fmt: skip
    # By vLLM's names, and in its shapes.
    assert sampling_arguments(wished, 1, temperature=0.7, max_tokens=9).items() >= {
        "temperature": 0.0, "top_p": 0.5, "max_tokens": 1, "stop": ["."], "detokenize": True, "min_p": 0.1,
        "ignore_eos": True, "logit_bias": {5: 2.0}, "structured_outputs": {"json": {"type": "object"}},
    }.items()  # fmt: skip
    assert "bad_words" not in sampling_arguments(wished, 1, temperature=0.7, max_tokens=9)


def test_a_completion_is_what_the_engine_drew() -> None:
    found = completion_of(output([5, 6], weight_versions=[span("default", 0, 1), span("2", 1, 2)]))
    assert (found.token_ids, found.logprobs, found.versions) == ([5, 6], [-0.1, -0.1], [(1, 2)])


@pytest.mark.parametrize(
    ("sampling", "asked"),
    [
        ({}, 0),
        ({"top_p": 1.0, "top_k": 0, "min_p": 0.0}, 0),
        ({"top_p": 0.9}, 99),
        ({"min_p": 0.1}, 99),
        ({"top_k": 20}, 56),
        ({"top_k": 20, "top_p": 0.9}, 56),
        ({"top_k": 50}, 99),
        ({"top_k": 20, "temperature": 0.0}, 0),
        ({"top_k": 20, "presence_penalty": 1.0}, 0),
    ],
    ids=str,
)
def test_so_many_are_asked_about_that_one_which_was_not_kept_is_among_them(
    sampling: dict[str, Any], asked: int
) -> None:
    found = sampling_arguments(Sampling(**sampling), 1, temperature=0.7, max_tokens=9, most_kept=99)
    assert found["logprobs"] == asked


def noted(*sets: list[int]) -> SimpleNamespace:
    """As our part of vLLM's front end notes it: of each of two tokens, from which it was drawn."""
    kept = [np.array(ids, np.int32) for ids in sets]
    return SimpleNamespace(token_ids=[5, 6], logprobs=[-0.5, 0.0], decoded_tokens=kept)


def test_what_a_token_was_drawn_from_is_told_where_it_is_known() -> None:
    known = noted([5, 7], [6])
    found = completion_of(output([5, 6], logprobs=known), most_kept=2)
    assert (found.token_ids, found.logprobs) == ([5, 6], [-0.5, 0.0])
    assert bytes(some(found.kept)) == kept_of([5, 7], [6])
    some_only = completion_of(output([5, 6], logprobs=known), most_kept=1).kept
    assert bytes(some(some_only)) == kept_of([], [6]), "there may be others than 5 and 7"
    assert bytes(some(completion_of(output([5, 6], logprobs=noted([5, 7], [])), most_kept=2).kept)) == kept_of(
        [5, 7], []
    )
    assert completion_of(output([5, 6], logprobs=noted([5, 7], [6, 8])), most_kept=1).kept is None, "nobody knows"
    with pytest.raises(GenerationError, match="2 logprobs for 2 drawn tokens, or of other tokens"):
        completion_of(output([5, 7], logprobs=known), most_kept=2)


async def test_many_sets_are_encoded_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*_: object, **__: object) -> Any:
        return threading.get_ident()

    monkeypatch.setattr(engine_module, "completion_of", convert)
    engine, here = InferenceEngine(ExplorerSettings()), threading.get_ident()
    for tokens, most, is_here in ((1, 4095, True), (8192, 0, True), (8192, 4095, False)):
        found: Any = await engine._converted(output([5] * tokens), None, most_kept=most)
        assert (found == here) == is_here


def test_a_response_in_pieces_has_the_sets_of_a_whole_one() -> None:
    sets, gathered = [[5, 7, 9], [6], [8, 9, 10]], Completion()
    for token, one in zip([5, 6, 8], sets, strict=True):
        piece = SimpleNamespace(token_ids=[token], logprobs=[-0.5], decoded_tokens=[np.array(one, np.int32)])
        gathered.add(completion_of(output([token], logprobs=piece), partial=True, most_kept=2))
    arrays = [np.array(one, np.int32) for one in sets]
    assert bytes(some(gathered.kept)) == bytes(some(told_kept(arrays, 2))) == kept_of([], [6], [])


def test_routes_are_those_of_all_tokens_that_were_run() -> None:
    chosen = np.arange(16).reshape(4, 2, 2)  # of a prompt of three tokens, and of the first of two that were drawn
    routes = some(completion_of(output([5, 6], routed_experts=chosen.astype(np.uint16)), routed_before=3).routes)
    assert routes.dtype == np.uint8
    assert routes.tolist() == chosen.tolist()
    assert completion_of(output([5, 6])).routes is None
    last = completion_of(output([6], routed_experts=chosen), routed_before=4, partial=True)
    assert last.routes is not None
    assert last.routes.tolist() == chosen.tolist()
    assert completion_of(output([6], finish_reason=None), routed_before=4, partial=True).routes is None
    with pytest.raises(GenerationError, match=r"where \[5, layers, k\]"):
        completion_of(output([6], routed_experts=chosen), routed_before=5, partial=True)
    for wrong in (None, chosen[:3], chosen[..., 0], chosen + 250):
        with pytest.raises(GenerationError, match=r"routes .*, where \[4, layers, k\] of 0 to 255 are needed"):
            completion_of(output([5, 6], routed_experts=wrong), routed_before=3)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"finish_reason": "abort"}, "'abort'"),
        ({"finish_reason": None}, "None"),
        ({"logprobs": None}, "0 logprobs for 2"),
        ({"logprobs": SimpleNamespace(token_ids=[5, 7], logprobs=[0.0, 0.0])}, "of other tokens"),
    ],
)
def test_what_is_not_finished_or_not_its_own_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(GenerationError, match=complaint):
        completion_of(output([5, 6], **changes))


@given(st.lists(st.tuples(st.sampled_from(["default", "0", "1", "17"]), st.integers(0, 5)), max_size=8))
def test_spans_ascend_and_empty_ones_are_left_out(parts: list[tuple[str, int]]) -> None:
    spans, start = [], 0
    for version, length in parts:
        spans.append(span(version, start, start + length))
        start += length
    found = version_spans(spans)
    assert [first for first, _ in found] == sorted({first for first, _ in found})
    assert len(found) == sum(length > 0 and version != "default" for version, length in parts)
    # What was drawn before any announcement is of the version that the engine was started with, where that is known.
    known = version_spans(spans, first_version=4)
    assert len(known) == sum(length > 0 for _, length in parts)
    assert {version for _, version in known} <= {0, 1, 4, 17}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1, max_size=5))
def test_core_lists_name_every_core(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{first + more}" if more else str(first) for first, more in ranges)
    assert parse_cores(text) == {core for first, more in ranges for core in range(first, first + more + 1)}


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    with recorded_spans(monkeypatch, "trinity_bus.telemetry.generative") as exporter:
        yield exporter


def test_a_request_is_told_in_the_names_of_the_conventions(spans: InMemorySpanExporter) -> None:
    arguments = sampling_arguments(Sampling(temperature=0.0, seed=5, top_k=3), 2, temperature=1.0, max_tokens=16)
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
        "gen_ai.request.top_k": 3,
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


def test_scripts_that_come_with_bug_reports_find_a_drawn_response() -> None:
    assert EngineCompletion is Completion
