"""An explorer's engine on a FAKE server over real HTTP: what is refused at its start, versions, the end of a server."""

import asyncio
import base64
import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from schemas import Member, ModelVersion, Sampling
from schemas.groups.kept import decode_kept
from tests.support.fakes import announcements
from tests.support.mesh.waiting import until
from trinity_bus.chat import Completion
from trinity_bus.config import ExplorerSettings, Settings
from trinity_bus.inference.completion import SoFar
from trinity_bus.inference.concurrency import EngineLoad
from trinity_bus.inference.errors import EngineDeadError, EngineStartError, GenerationError, RequestRefusedError
from trinity_bus.inference.server import engine as server_engine
from trinity_bus.inference.server.client import load_of, read_answer
from trinity_bus.inference.server.engine import ServerEngine
from trinity_bus.inference.server.start import KINDS
from trinity_bus.runtime.http import listening
from trinity_bus.weights.checkpoint import CheckpointTransport
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.layout import TensorMeta, TransferManifest
from trinity_bus.weights.transport import Method, Source
from workers.preconditions import ensure, problems

PROMPT = [5, 6]


GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"


@dataclass(slots=True)
class FakeServer:
    """FAKE: says 7, 8, 9, and how likely by the temperature; what it lacks says its test."""

    owned_by: str = "vllm"
    models: int = 1
    token_ids: bool = True
    logprobs: bool = True
    raw: bool = False
    filters: bool = True
    dev_routes: bool = True
    scale_out: bool = True
    tells_versions: bool = True
    max_model_len: int | None = 4096
    finish_reason: str = "length"
    loads: bool = True
    label: str = "default"
    more: dict[str, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    is_paused: bool = False

    def app(self) -> web.Application:
        self.open.set()
        app = web.Application()
        app.router.add_get("/v1/models", self.model)
        app.router.add_get("/health", self.told)
        for path in (GENERATE, COMPLETIONS):
            app.router.add_post(path, self.complete)
        if self.dev_routes:
            app.router.add_get("/weight_info", self.told)
            app.router.add_get("/model_info", self.told)
            for path in ("/pause", "/collective_rpc", "/update_weight_version", "/resume", "/update_weights_from_disk"):
                app.router.add_post(path, self.weights)
            app.router.add_post("/abort_requests", self.abort)
        return app

    async def told(self, _: web.Request) -> web.Response:
        return await self.said({"weight_version": self.label})

    async def said(self, what: Any, status: int = 200) -> web.Response:
        return web.json_response(what, status=status)

    async def model(self, _: web.Request) -> web.Response:
        one = {"id": "m", "owned_by": self.owned_by, "max_model_len": self.max_model_len}
        return await self.said({"data": [one] * self.models})

    async def weights(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(f"{request.path_qs} {json.dumps(body)}")
        self.is_paused = request.path != "/resume"
        self.label = body.get("new_version") or body.get("weight_version") or self.label
        return await self.said({"success": self.loads, "message": "no such folder"})

    async def abort(self, _: web.Request) -> web.Response:
        if not self.open.is_set():
            self.finish_reason = "abort"
            self.open.set()
        return await self.said({"status": "aborted"})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if self.is_paused and request.path == GENERATE:
            return await self.said("is paused", 503)
        if not self.scale_out and request.path == GENERATE:
            return await self.said("Restart vllm serve with --enable-scale-out", 403)
        whole = await request.json()
        body = whole.get("sampling_params", whole)
        if "/" in whole.get("cache_salt", ""):
            return await self.said("cache_salt must not contain '/'", 400)
        self.asked.append(whole)
        began = self.label
        await self.open.wait()
        temperature = 1.0 if self.raw else body.get("temperature", 1.0)
        drawn = [7, 8, 9][: body["max_tokens"]]
        likely = 0.0 if body.get("top_k") == 1 and self.filters else -1.0 / temperature
        top = [-1 / temperature, -5 / temperature]
        choice: dict[str, Any] = {"finish_reason": self.finish_reason, "text": "no matter", **self.more}
        choice |= {"token_ids": drawn} if self.token_ids else {}
        if request.path == GENERATE:
            likeliest = [{"token_id": i, "logprob": one} for i, one in enumerate(top)]
            told: dict[str, Any] = {
                "content": [{"token_id": one, "logprob": likely, "top_logprobs": likeliest} for one in drawn]
            }
            # What was under way goes on with the next weights.
            labels = enumerate(dict.fromkeys([began, self.label]))
            spans = [{"version": label, "start": start, "end": 9} for start, label in labels]
            choice |= {"weight_versions": spans} if self.tells_versions else {}
        else:
            told = {"token_logprobs": [likely] * len(drawn), "top_logprobs": [{"a": top[0], "b": top[1]}]}
            if body.get("echo") and body["logprobs"]:
                told["token_logprobs"] = [None, *[-0.25] * len(body["prompt"])]
        choice |= {"logprobs": told} if self.logprobs else {}
        if not whole.get("stream"):
            scores = [None, *[{str(token): {"logprob": -0.25}} for token in whole.get("token_ids", [])[1:]]]
            prompt = {"prompt_logprobs": scores} if "prompt_logprobs" in body else {}
            choices = [{**choice, "index": i} for i in reversed(range(body.get("n", 1)))]
            return await self.said({"choices": choices, **prompt})
        response = web.StreamResponse()
        await response.prepare(request)
        end = {name: value for name, value in choice.items() if name in {"finish_reason", "weight_versions"}}
        for event in ({**choice, "finish_reason": None}, {"index": 0, **end}):
            await response.write(f"data: {json.dumps({'choices': [event]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = {"model_type": "qwen3", "vocab_size": 512, "max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@asynccontextmanager
async def served(server: FakeServer, port: int = 0) -> AsyncIterator[str]:
    async with listening(server.app(), "127.0.0.1", port, setting="of a test", shutdown_s=0.1) as address:
        yield f"http://{address}"


@asynccontextmanager
async def engine_at(urls: str, model: Path, **settings: Any) -> AsyncIterator[ServerEngine]:
    own = {"model_path": str(model), "engine_url": urls, "start_timeout_s": 5, **settings}
    engine = ServerEngine(ExplorerSettings.model_validate(own), sync_timeout_s=5)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def engine_on(server: FakeServer, model: Path, **settings: Any) -> AsyncIterator[ServerEngine]:
    async with served(server) as url, engine_at(url, model, **settings) as engine:
        yield engine


def announced(method: Method = "checkpoint") -> tuple[ModelVersion, Member]:
    told: Any = {"method": method, "epoch": 2, "checksum": "0" * 64, "checkpoint": "/checkpoints/step-3"}
    version = announcements.announced(3, "explorer-0", **told)
    return version, version.members[0]


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """FAKE: every checkpoint is what was announced. Returns which were looked at."""
    looked: list[str] = []

    async def read(_: Any, transport: CheckpointTransport, source: Source) -> TransferManifest:
        del transport
        looked.append(source.folder)
        meta = TensorMeta("w", "float32", (25,))
        return TransferManifest(source.version, "00" * 32, 100, (meta,))

    monkeypatch.setattr(server_engine, "_read", read)
    return looked


def file_of(array: np.ndarray[Any, Any]) -> str:
    np.save(file := io.BytesIO(), array)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("lacks", "named"),
    [
        ({"token_ids": False}, "no token ids"),
        ({"logprobs": False}, "option logprobs"),
        ({"raw": True}, "--logprobs-mode processed_logprobs"),
        ({"dev_routes": False}, "VLLM_SERVER_DEV_MODE=1"),
        ({"owned_by": "somebody"}, "explorer.follows to none"),
        ({"max_model_len": 16}, "--max-model-len"),
        ({"models": 2}, "serves m, m"),
        ({"models": 0}, "serves none"),
        ({"scale_out": False}, "--enable-scale-out"),
        ({"tells_versions": False}, "vLLM 0.32"),
        ({"owned_by": "sglang", "token_ids": False}, "return_token_ids"),
    ],
)
async def test_a_server_that_lacks_something_is_refused_at_start_and_told_what(
    lacks: dict[str, Any], named: str, model: Path
) -> None:
    with pytest.raises(EngineStartError, match=named):
        async with engine_on(FakeServer(**lacks), model):
            """Not reached."""


async def test_a_server_that_is_not_there_is_waited_for_and_then_refused(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    engine = ServerEngine(
        ExplorerSettings(model_path=str(model), engine_url=f"http://127.0.0.1:{port}", start_timeout_s=0.01)
    )
    # Nobody listens there any more; or the time is over before that is known.
    with pytest.raises(EngineStartError, match="cannot be an engine"):
        await engine.start()
    await engine.stop()


async def test_who_watches_is_told_what_is_drawn_but_the_newest_which_may_be_the_end(model: Path) -> None:
    server = FakeServer(owned_by="sglang")
    async with engine_on(server, model) as engine:
        told: list[Completion] = []

        def watch(so_far: SoFar) -> None:
            told.extend(so_far())
            asyncio.get_running_loop().call_soon(look, so_far)

        def look(so_far: SoFar) -> None:
            told.extend(so_far())
            if not told[-1].finish_reason:
                asyncio.get_running_loop().call_later(0.01, look, so_far)

        (drawn,) = await engine.generate(PROMPT, Sampling(max_tokens=3), watch=watch)
        assert (drawn.token_ids, drawn.finish_reason, drawn.versions) == ([7, 8, 9], "length", [])
        await until(lambda: told[-1].finish_reason == "length")
        assert [one.token_ids for one in told if one.token_ids or one.finish_reason] == [[7, 8, 9]]
        assert engine.steps.count == 3


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_tokens_logprobs_and_scores_are_the_servers(kind: str, model: Path) -> None:
    server = FakeServer(owned_by=kind)
    async with engine_on(server, model) as engine:
        assert (engine.bounds.vocabulary, engine.bounds.positions) == (512, 1024)
        drawn = await engine.generate(PROMPT, Sampling(max_tokens=2, temperature=2.0, top_k=40), 2)
        assert [(one.token_ids, one.logprobs, one.finish_reason) for one in drawn] == [
            ([7, 8], [-0.5] * 2, "length")
        ] * 2
        asked = server.asked[-1]
        assert asked["token_ids" if kind == "vllm" else "prompt"] == PROMPT
        assert asked.get("sampling_params", asked)["top_k"] == 40
        parts = [part async for part in engine.stream(PROMPT, Sampling(max_tokens=3))]
        assert [(part.token_ids, part.finish_reason) for _, part in parts] == [([7, 8, 9], ""), ([], "length")]
        assert await engine.score([1, 2, 3, 4], 2) == [-0.25, -0.25]
        assert engine.tokens_generated == 7
        with pytest.raises(RequestRefusedError):
            await engine.score([1, 2], 2)
        server.finish_reason = "abort"
        with pytest.raises(GenerationError, match="abort"):
            await engine.generate(PROMPT, Sampling(max_tokens=2))


async def test_options_that_a_server_would_not_heed_are_refused(model: Path) -> None:
    async with engine_on(FakeServer(owned_by="sglang", filters=False), model) as engine:
        with pytest.raises(RequestRefusedError, match="before top_p"):
            await engine.generate(PROMPT, Sampling(top_p=0.5))
        with pytest.raises(RequestRefusedError, match="bad_words"):
            await engine.generate(PROMPT, Sampling(bad_words=["no"]))
    async with engine_on(FakeServer(owned_by="somebody"), model, follows="none") as engine:
        with pytest.raises(RequestRefusedError, match="min_p"):
            await engine.generate(PROMPT, Sampling(min_p=0.5))


async def test_vllm_keeps_requests_while_it_loads_and_tells_which_version_drew_which_tokens(
    model: Path, proven: list[str]
) -> None:
    server = FakeServer()
    async with engine_on(server, model, caches="kept") as engine:
        assert not engine.tells_versions, "but with the end"
        server.calls.clear()
        server.open.clear()
        before = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=3)))
        await until(lambda: "cache_salt" in server.asked[-1])
        version, member = announced()
        outcome = await engine.sync_weights(version, member)
        assert (outcome.checksum, outcome.nbytes, engine.model_version) == (version.checksum, 100, 3)
        assert [call.split()[0] for call in server.calls] == [
            "/pause?mode=keep&clear_cache=false",
            "/collective_rpc",
            "/update_weight_version",
            "/resume",
        ]
        assert "/checkpoints/step-3" in server.calls[1]
        server.open.set()
        # The first token is of weights without a version.
        assert (await before)[0].versions == [(1, 3)]
        assert (await engine.generate(PROMPT, Sampling(max_tokens=1)))[0].versions == [(0, 3)]
        streamed = [more async for _, more in engine.stream(PROMPT, Sampling(max_tokens=3))]
        assert [one.versions for one in streamed] == [[], [(0, 3)]]
        assert len({asked["cache_salt"] for asked in server.asked if "cache_salt" in asked}) == 2


async def test_other_servers_load_when_nothing_is_drawn_and_no_response_is_of_two_versions(
    model: Path, proven: list[str]
) -> None:
    server = FakeServer(owned_by="sglang")
    async with engine_on(server, model) as engine:
        assert engine.tells_versions
        server.open.clear()
        before = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=1)))
        await asyncio.sleep(0)
        version, member = announced()
        syncing = asyncio.create_task(engine.sync_weights(version, member))
        await until(lambda: bool(proven))
        after = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=1)))
        assert server.calls == []
        server.open.set()
        await syncing
        assert [call.split()[0] for call in server.calls] == ["/update_weights_from_disk"]
        assert [(await before)[0].versions, (await after)[0].versions] == [[], [(0, 3)]]


async def test_a_version_is_not_taken_by_another_method_or_amid_requests(model: Path, proven: list[str]) -> None:
    server = FakeServer(owned_by="sglang")
    async with engine_on(server, model) as engine:
        with pytest.raises(WeightTransferError, match="sync_method to checkpoint"):
            await engine.sync_weights(*announced("nccl"))
        server.open.clear()
        before = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=1)))
        await asyncio.sleep(0)
        engine._sync_timeout_s = 0.01
        with pytest.raises(WeightTransferError, match=r"explorer\.max_tokens"):
            await engine.sync_weights(*announced())
        server.open.set()
        assert (await before)[0].versions == []
        assert (engine.model_version, server.calls) == (-1, [])


@pytest.mark.parametrize("service", ["explorer", "trainer"])
def test_what_servers_may_leave_out_of_training_is_said_when_a_service_starts(
    service: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own: dict[str, Any] = {"mesh": {"model_path": str(model)}, "trainer": {"checkpoint_dir": tmp_path}}
    servers: dict[str, Any] = {
        "explorer": {"engine_url": "http://127.0.0.1:1"},
        "synchronizer": {"sync_method": "checkpoint"},
    }
    for more, said in ((servers, 1), ({}, 0)):
        caplog.clear()
        ensure(service, Settings(**own, **more))
        assert caplog.text.count("are left out of training unless the servers tell") == said


async def test_kept_tokens_and_routes_are_told_where_the_server_tells_them(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    server = FakeServer(more={"sampling_mask": [[9, 7], [8, 2]], "routed_experts": file_of(routes)})
    limited = Sampling(max_tokens=2, top_k=2)
    async with engine_on(server, model, capture_routes=True) as engine:
        (drawn,) = await engine.generate(PROMPT, limited, trained=True)
        assert drawn.routes is not None
        assert (drawn.routes == routes).all()
        assert drawn.kept is not None
        assert decode_kept(drawn.kept, 2).ids.tolist() == [7, 9, 2, 8]
        # Of as many as the limit there may be others.
        monkeypatch.setattr("trinity_bus.inference.server.engine.MOST_KEPT", 4)
        server.more = {**server.more, "sampling_mask": [[9, 7], [1, 2, 3, 8]]}
        (partly,) = await engine.generate(PROMPT, limited, trained=True)
        assert partly.kept is not None
        assert decode_kept(partly.kept, 2).counts.tolist() == [2, 0]
        # Whoever asks for all of them is not told which they are.
        (whole,) = await engine.generate(PROMPT, Sampling(max_tokens=2), trained=True)
        assert whole.kept is None
        (shown,) = await engine.generate(PROMPT, limited)
        assert shown.kept is None, "nobody trains on it"
    async with engine_on(server, model) as engine:
        (few,) = await engine.generate(PROMPT, Sampling(max_tokens=2, top_k=1), trained=True)
        assert few.routes is None
    with pytest.raises(EngineStartError, match="--enable-return-routed-experts"):
        async with engine_on(FakeServer(), model, capture_routes=True):
            """Not reached."""


async def test_a_server_that_a_killed_explorer_has_left_paused_goes_on(model: Path) -> None:
    async with engine_on(FakeServer(is_paused=True), model) as engine:
        assert await engine.generate(PROMPT, Sampling(max_tokens=1))


@pytest.mark.parametrize("loads", [False, True])
async def test_a_server_that_is_not_what_it_is_thought_to_be_is_dead(
    model: Path, proven: list[str], monkeypatch: pytest.MonkeyPatch, *, loads: bool
) -> None:
    monkeypatch.setattr(server_engine, "_HEALTH_S", 0.001)
    server = FakeServer(owned_by="sglang", loads=loads)
    async with engine_on(server, model) as engine:
        if server.loads:
            await engine.sync_weights(*announced())
            server.label = "default"
        else:
            with pytest.raises(EngineDeadError, match="no such folder"):
                await engine.sync_weights(*announced())
        assert ("started anew" if server.loads else "no such folder") in str(await engine.wait_dead())
        with pytest.raises(EngineDeadError):
            await engine.generate(PROMPT, Sampling())


async def test_requests_on_a_server_that_has_failed_to_load_end(model: Path, proven: list[str]) -> None:
    server = FakeServer()
    async with engine_on(server, model) as engine:
        server.asked.clear()
        server.open.clear()
        asking = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=3)))
        await until(lambda: bool(server.asked))
        server.loads = False
        with pytest.raises(EngineDeadError, match="no such folder"):
            await engine.sync_weights(*announced())
        with pytest.raises(GenerationError, match="abort"):
            await asking
        assert server.is_paused


async def test_a_machine_that_is_gone_without_a_word_has_broken_off(model: Path) -> None:
    async with engine_on(FakeServer(), model) as engine:
        await engine.generate(PROMPT, Sampling(max_tokens=1))
        http = engine._members[0].client._http
        assert http is not None
        assert http.connector is not None
        ((kept, _),) = next(iter(http.connector._conns.values()))
        assert kept.transport is not None
        connection = kept.transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        times = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT]
        assert [connection.getsockopt(socket.IPPROTO_TCP, one) for one in times] == [12, 4, 3, 24_000]


def test_settings_by_which_no_version_would_arrive_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> bool:
        return any("checkpoints that it sees" in problem for problem in problems("explorer", Settings()))

    assert not told()
    monkeypatch.setenv("TRINITY_BUS_EXPLORER__ENGINE_URL", "http://127.0.0.1:8000")
    assert told()
    monkeypatch.setenv("TRINITY_BUS_SYNCHRONIZER__SYNC_METHOD", "checkpoint")
    assert not told()


def test_how_busy_it_is_is_what_its_metrics_tell() -> None:
    text = """# HELP vllm:kv_cache_usage_perc of the cache
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 2.0
vllm:num_requests_waiting{engine="0"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:num_preemptions_total{engine="0"} 1.0
"""
    names = KINDS["vllm"].metrics
    assert load_of(text, names, 4) == EngineLoad(0.25, 5, 7, 1, 4)
    assert load_of(text.replace("num_preemptions", "others"), names, 4) is None
    assert load_of(text, KINDS["sglang"].metrics, 4) is None
    with pytest.raises(GenerationError, match="many"):
        load_of("vllm:num_requests_running many", names, 4)


def test_an_answer_of_more_responses_than_any_request_asks_for_is_none() -> None:
    def body(choices: int) -> bytes:
        return json.dumps({"choices": [{"index": 0}] * choices}).encode()

    assert len(read_answer(body(1024)).choices) == 1024
    with pytest.raises(GenerationError, match=r"length <= 1024"):
        read_answer(body(1025))
