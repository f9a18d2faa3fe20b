"""An inference server of somebody else that answers what nobody asked for: each is one failed attempt, and no more."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from schemas import Sampling
from tests.unit.inference.test_server_engine import PROMPT, FakeServer, engine_on
from trinity_bus.inference.errors import GenerationError
from trinity_bus.inference.server import engine as server_engine
from trinity_bus.inference.server.client import load_of, read_answer, read_json
from trinity_bus.inference.server.start import KINDS

DEEP = b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
TWO = Sampling(max_tokens=2, top_k=2)


class Liar(FakeServer):
    """FAKE: examined, it is an engine; then it says what its test has it say."""

    lie: Any = None

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if self.lie is None:
            return await super().complete(request)
        if isinstance(self.lie, web.Response):
            return self.lie
        response = web.StreamResponse()
        await response.prepare(request)
        for choice in self.lie:
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        return response


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"vocab_size": 512, "max_position_embeddings": 1024}')
    return tmp_path


def choice(tokens: int, index: int = 0, reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    told = {"content": [{"token_id": 7, "logprob": -1.0}] * tokens}
    spans = [{"version": "default", "start": 0, "end": tokens}]
    drawn = {"index": index, "token_ids": [7] * tokens, "logprobs": told, "finish_reason": reason}
    return {**drawn, "weight_versions": spans, **more}


def file(header: bytes, data: bytes = b"") -> str:
    return base64.b64encode(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data).decode()


OF_PICKLES = b"{'descr': '|O', 'fortran_order': False, 'shape': (3, 1, 1), }\n"
HUGE = b"{'descr': '|u1', 'fortran_order': False, 'shape': (3, 999999999, 999999999), }\n"
INTEGERS = b"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 1, 1), }\n"
ROUTES = file(INTEGERS, bytes(12))
LIES: dict[str, dict[str, Any]] = {
    "of other tokens": {"logprobs": {"content": [{"token_id": 8, "logprob": -1.0}] * 2}},
    "nobody knows how likely": {"logprobs": {"content": [{"token_id": 7, "logprob": -9999.0}] * 2}},
    "of no weights": {"weight_versions": []},
    "of weights from before its beginning": {"weight_versions": [{"version": "default", "start": -1}]},
    "of weights after its end": {"weight_versions": [{"version": "a", "start": 0}, {"version": "b", "start": 2}]},
    "of weights twice at once": {"weight_versions": [{"version": "a", "start": 0}] * 2},
    "drawn from others": {"sampling_mask": [[7], [8]]},
    "drawn from one twice": {"sampling_mask": [[7], [7, 7]]},
    "drawn from less": {"sampling_mask": [[7]]},
    "routes that are a pickle": {"routed_experts": file(OF_PICKLES, bytes(24))},
    "routes without end": {"routed_experts": file(HUGE)},
    "routes to no expert": {"routed_experts": file(INTEGERS, b"\xff" * 12)},
    "routes that are no file": {"routed_experts": "AAAA"},
    "routes that are no base64": {"routed_experts": "a"},
}


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param([choice(1, reason=None)] * 4, id="more tokens than were asked for"),
        pytest.param([choice(1, index=7)], id="a response that nobody asked for"),
        pytest.param([choice(1, index=1 << 70)], id="a number that no frame takes"),
        pytest.param([choice(1), choice(1)], id="more of one that has ended"),
    ],
)
async def test_a_stream_holds_what_was_asked_for_or_fails(lie: list[Any], model: Path) -> None:
    server = Liar()
    async with engine_on(server, model) as engine:
        server.lie = lie
        with pytest.raises(GenerationError):
            _ = [part async for part in engine.stream(PROMPT, TWO)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(json.dumps({"choices": [choice(3)]}).encode(), id="more tokens than were asked for"),
        pytest.param(json.dumps({"choices": []}).encode(), id="nothing"),
        pytest.param(DEEP, id="deeply nested"),
        *(
            pytest.param(
                json.dumps({"choices": [choice(2, **{"routed_experts": ROUTES} | LIES[said])]}).encode(), id=said
            )
            for said in LIES
        ),
    ],
)
async def test_an_answer_is_what_was_asked_for_or_fails(body: bytes, model: Path) -> None:
    server = Liar(more={"routed_experts": ROUTES})
    async with engine_on(server, model, capture_routes=True) as engine:
        server.lie = web.Response(body=json.dumps({"choices": [choice(2, routed_experts=ROUTES)]}).encode())
        assert await engine.generate(PROMPT, TWO, trained=True)
        server.lie = web.Response(body=body)
        with pytest.raises(GenerationError):
            await engine.generate(PROMPT, TWO, trained=True)


async def test_what_was_made_small_is_not_made_large_again(model: Path) -> None:
    server = Liar()
    async with engine_on(server, model) as engine:
        whole = json.dumps({"choices": [choice(2)]}).encode()
        server.lie = web.Response(body=gzip.compress(whole), headers={"Content-Encoding": "gzip"})
        with pytest.raises(GenerationError, match="cannot be read"):
            await engine.generate(PROMPT, TWO)


def test_what_is_nested_without_end_cannot_be_read() -> None:
    for read in (read_answer, lambda body: read_json(body, msgspec.Raw), lambda body: read_json(body, dict[str, int])):
        with pytest.raises(GenerationError):
            read(DEEP)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999"])
async def test_a_load_that_is_no_number_ends_no_explorer_otherwise_than_as_a_dead_server(
    value: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "_HEALTH_S", 0.001)
    metrics = "\n".join(f"{name} {value}" for name in KINDS["vllm"].metrics)
    with pytest.raises(GenerationError):
        load_of(metrics, KINDS["vllm"].metrics, 1)

    async def told(*_: object, **__: object) -> bytes:
        return metrics.encode()

    async with engine_on(Liar(), model) as engine:
        monkeypatch.setattr(engine._members[0].client, "ask", told)
        assert "a metric" in str(await engine.wait_dead())


async def test_a_server_that_says_nothing_of_what_it_draws_from_tells_no_filters(model: Path) -> None:
    class Forgetful(Liar):
        async def complete(self, request: web.Request) -> web.StreamResponse:
            is_last = (await request.json())["sampling_params"]["top_k"] == 1
            return web.json_response({"choices": []}) if is_last else await super().complete(request)

    async with engine_on(Forgetful(), model) as engine:
        assert not engine._found.filters_told
