"""One real vLLM engine with a tiny random Qwen3, and a real publisher: versions, logprobs, failures."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from msgspec import structs
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks._tiny_model import make_tiny_qwen3
from schemas import ModelVersion, Rollout, Sampling, build_group
from schemas.groups.kept import decode_kept
from tests.support.faults.transfers import announcement
from tests.support.mesh.processes import assert_all_gone
from tests.support.mesh.waiting import beside, until
from tests.support.narrowing import some
from tests.support.reference import mismatch
from tests.support.training.samples import train_sample
from tests.unit.schemas.record_strategies import OF_GROUP
from trinity_bus.chat import wire
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings, SynchronizerSettings, TrainerSettings
from trinity_bus.config.explorer import REFUSED_ENGINE_OPTIONS
from trinity_bus.inference.completion import SoFar
from trinity_bus.inference.concurrency import ConcurrencyController
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.inference.errors import EngineDeadError, EngineStartError, RequestRefusedError
from trinity_bus.inference.launch import _configuration, launch
from trinity_bus.inference.tracing import TokenCounter
from trinity_bus.inference.weight_sync import SyncOutcome
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.steps.choice import left_out
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.pull.server import WeightServer
from workers.trainer.engines import Publisher, make_publisher

pytestmark = [
    pytest.mark.e2e,
    # vLLM and what it imports warn of their own use of each other.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
]

NAME = "explorer-0"
SYNC_S = 10.0
"""Long for a busy machine, and short enough to be waited for once: by one whose trainer is silent."""
TOLERANCE = 1e-3
CACHE_TOKENS = 3072
"""Of six requests as long as there can be one: what asks for more is congestion."""
CACHE_BYTES = 2 * 4 * 2 * 32 * 4
"""Of a token: keys and values, layers, heads, their size, float32."""
PROMPT = [3, 4, 5, 6, 7]
type Model = Any


class Rig:
    """An engine, a publisher, and the models whose weights are published."""

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        from transformers import AutoModelForCausalLM

        paths = [make_tiny_qwen3(folder / str(seed), seed=seed) for seed in range(2)]
        self.models: list[Model] = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in paths]
        self.paths = paths
        self.path = paths[0]
        self.runner = runner
        self.checkpoints = folder / "checkpoints"
        self.objects = f"file://{folder}/objects"
        self.publisher = WeightServer(bucket_bytes=1 << 20, timeout_s=SYNC_S, method="gloo")
        self.engine = InferenceEngine(
            ExplorerSettings(
                name=NAME,
                model_path=str(self.path),
                dtype="float32",
                max_model_len=512,
                seed=1,
                cpu_kvcache_gib=CACHE_TOKENS * CACHE_BYTES / (1 << 30),
            ),
            SynchronizerSettings(sync_timeout_s=SYNC_S),
        )
        self.version = -1

    def run[R](self, work: Coroutine[Any, Any, R]) -> R:
        return self.runner.run(work)

    def announce(self, of: int | list[tuple[str, torch.Tensor]]) -> ModelVersion:
        """Stage a model's weights, or these, as the next version."""
        self.version += 1
        tensors = of if isinstance(of, list) else self.models[of].state_dict().items()
        checksum = self.publisher.stage(self.version, tensors)
        return announcement(self.publisher, self.version, checksum, NAME, epoch=self.version)

    @cached_property
    def publishers(self) -> dict[str, Publisher]:
        """One for each way by which versions come."""
        trainer, how = TrainerSettings(bucket_mib=1), {"sync_timeout_s": SYNC_S, "object_url": self.objects}
        self.checkpoints.mkdir(exist_ok=True)
        return {
            method: make_publisher(trainer, SynchronizerSettings(sync_method=method, **how), self.checkpoints, "cpu")
            for method in ("nccl", "memory", "checkpoint", "object")
        }

    def announce_by(self, method: str, model: int, explorer: str = NAME) -> ModelVersion:
        """Save and stage a model's weights as the next version, which comes by one of the ways."""
        self.version += 1
        self.models[model].save_pretrained(checkpoint.begin(self.checkpoints, self.version))
        progress = TrainingProgress(step=self.version, version=self.version)
        folder = checkpoint.commit(self.checkpoints, progress, WrittenBy(dtype="float32"), keep=2)
        publisher = self.publishers[method]
        checksum = publisher.stage(self.version, self.models[model].state_dict().items())
        publisher.durable(self.version)
        return announcement(publisher, self.version, checksum, explorer, epoch=self.version, folder=folder)

    async def transfer(self, announced: ModelVersion, engine: InferenceEngine | None = None) -> SyncOutcome:
        return await (engine or self.engine).sync_weights(announced, announced.members[0])

    def sync(self, model: int) -> SyncOutcome:
        return self.run(self.transfer(self.announce(model)))

    def generate(
        self, prompt: Sequence[int] = PROMPT, n: int = 2, *, trained: bool = True, **sampling: Any
    ) -> list[Completion]:
        return self.run(self.engine.generate(prompt, Sampling(**{"max_tokens": 24} | sampling), n, trained=trained))

    def mismatch(
        self, model: int, completion: Completion, prompt: Sequence[int] = PROMPT, temperature: float = 1.0
    ) -> torch.Tensor:
        """[tokens] how far the engine's logprobs are from those that transformers computes with a model's weights."""
        return mismatch(self.models[model], prompt, completion.token_ids, completion.logprobs, temperature)

    def assert_draws_from(self, model: int, completions: Sequence[Completion], **how: Any) -> None:
        for completion in completions:
            assert self.mismatch(model, completion, **how).max() < TOLERANCE


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with asyncio.Runner() as runner:
        made = Rig(tmp_path_factory.mktemp("models"), runner)
        runner.run(made.engine.start())
        yield made
        runner.run(made.engine.stop())
        for publisher in (made.publisher, *made.publishers.values()):
            publisher.close()


def test_options_that_are_refused_are_options_and_all_that_is_decided_is_among_them(rig: Rig) -> None:
    from vllm import AsyncEngineArgs

    known = {field.name for field in fields(AsyncEngineArgs)}
    refused = [name for names in REFUSED_ENGINE_OPTIONS for name in names]
    for name in refused:
        assert name in known or (name.endswith("_") and any(one.startswith(name) for one in known)), name
    decided: set[str] = set()

    def note(arguments: dict[str, Any], *_: object, **__: object) -> None:
        decided.update(arguments)
        raise EngineStartError("that is all")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trinity_bus.inference.launch._add_options", note)
        with pytest.raises(EngineStartError, match="that is all"):
            _configuration(ExplorerSettings(model_path=str(rig.path), adapter_rank=8), str(rig.path))
    assert decided - set(refused) - {"kv_cache_memory_bytes", "max_loras", "max_lora_rank"} == set()


@pytest.mark.skipif(torch.cuda.is_available(), reason="engines on GPUs tell routes")
def test_routes_that_no_engine_on_a_cpu_tells_are_refused(rig: Rig) -> None:
    settings = ExplorerSettings(model_path=str(rig.path), capture_routes=True)
    with pytest.raises(EngineStartError, match=r"explorer\.capture_routes is set: .* needs Triton, and so a GPU"):
        launch(settings, TokenCounter(), threading.Event())


def test_logprobs_are_those_of_the_distribution_that_drew_the_token(rig: Rig) -> None:
    rig.sync(0)
    for temperature in (1.0, 0.5, 2.0):
        completions = rig.generate(temperature=temperature)
        rig.assert_draws_from(0, completions, temperature=temperature)
        # Each other temperature is clearly another distribution.
        assert rig.mismatch(0, completions[0], temperature=temperature * 1.5).max() > 100 * TOLERANCE
        assert [completion.versions for completion in completions] == [[(0, rig.version)]] * 2
        # A teacher says so of tokens that another model drew, whatever they were drawn at.
        said = completions[0].token_ids
        completions[0].logprobs[:] = rig.run(rig.engine.score([*PROMPT, *said], len(PROMPT)))
        rig.assert_draws_from(0, completions[:1])
    with pytest.raises(RequestRefusedError, match="nothing to score from 5 on"):
        rig.run(rig.engine.score(PROMPT, len(PROMPT)))


def test_the_front_end_keeps_no_metrics_that_nobody_reads(rig: Rig) -> None:
    manager = rig.engine.llm.logger_manager
    assert manager is not None
    assert [type(logger).__name__ for logger in manager.stat_loggers] == ["PerEngineStatLoggerAdapter"]


def test_a_cut_distribution_is_renormalized(rig: Rig) -> None:
    for completion in rig.generate(top_k=1):
        assert max(map(abs, completion.logprobs)) < TOLERANCE


@pytest.mark.parametrize(
    "limits",
    [
        {"top_p": 0.8},
        {"top_k": 5},
        {"min_p": 0.5},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_the_trainer_computes_what_the_engine_says_of_tokens_drawn_from_some(rig: Rig, limits: dict[str, Any]) -> None:
    rig.sync(0)
    completions = rig.generate(n=4, **limits)
    samples = [
        train_sample(
            [*PROMPT, *one.token_ids],
            len(PROMPT),
            temperature=limits.get("temperature", 1.0),
            kept=np.frombuffer(some(one.kept), np.uint8),
        )
        for one in completions
    ]
    trainer = TorchEngine(TrainerSettings(model_path=str(rig.path), threads=1))
    of_whole = trainer.logprobs([structs.replace(sample, kept=None) for sample in samples])
    for one, found, whole in zip(completions, trainer.logprobs(samples), of_whole, strict=True):
        np.testing.assert_allclose(found, one.logprobs, atol=TOLERANCE)
        assert abs(whole - one.logprobs).max() > 50 * TOLERANCE, "of all tokens it is another distribution"
    drawn = [
        Rollout(
            prompt_token_ids=PROMPT,
            response_token_ids=one.token_ids,
            logprobs=one.logprobs,
            reward=float(run % 2),
            sampling=Sampling(**{"temperature": 1.0} | limits),
            kept=one.kept,
        )
        for run, one in enumerate(completions)
    ]
    group = build_group(drawn, **OF_GROUP)
    assert left_out([group], rig.engine.bounds, train_limited=False, wants_greedy=False) == []
    metrics = trainer.train_step([group])
    assert (metrics["samples_trained"], metrics["samples_limited"], metrics["updates"]) == (4, 4, 1)
    assert abs(metrics["rollout_k3"]) < TOLERANCE**2
    assert rig.generate()[0].kept is None
    assert rig.generate(presence_penalty=1.0, **limits)[0].kept is None


def test_kept_tokens_are_told_in_pieces_and_not_where_there_may_be_more(rig: Rig) -> None:
    async def streamed() -> Completion:
        drawing = Completion([], [], "", [])
        async for _, more in rig.engine.stream(PROMPT, Sampling(max_tokens=24, top_k=5), trained=True):
            wire.take_frame(drawing, wire.frame_of(more))
        return drawing

    whole = rig.run(streamed())
    counts, ids = decode_kept(some(whole.kept), len(whole.token_ids))
    assert set(counts.tolist()) == {5}
    assert all(token in ids[5 * at : 5 * at + 5] for at, token in enumerate(whole.token_ids))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trinity_bus.inference.engine.MOST_KEPT", 5)
        assert [one.kept for one in rig.generate(top_k=5)] == [None, None]
        assert all(one.kept is not None for one in rig.generate(top_k=4))


def test_who_is_drawn_beside_what_is_trained_is_told_no_kept_tokens_and_nothing_else_otherwise(rig: Rig) -> None:
    async def beside() -> list[Completion]:
        ways: list[tuple[dict[str, Any], bool]] = [
            ({"temperature": 0.0}, False),
            ({"top_p": 0.9}, True),
            ({"top_p": 0.9}, False),
            ({}, True),
        ]
        asked = [
            rig.engine.generate(PROMPT, Sampling(**{"max_tokens": 24, "ignore_eos": True} | way), trained=trained)
            for way, trained in ways
        ]
        return [one for (one,) in await asyncio.gather(*asked)]

    (alone,) = rig.generate(n=1, trained=False, temperature=0.0, ignore_eos=True)
    greedy, trained, shown, whole = rig.run(beside())
    assert [one.kept is not None for one in (greedy, trained, shown, whole)] == [False, True, False, False]
    assert greedy.token_ids == alone.token_ids
    np.testing.assert_allclose(greedy.logprobs, alone.logprobs, atol=TOLERANCE)
    assert [len(one.logprobs) for one in (greedy, trained, shown, whole)] == [24] * 4


def test_a_synced_version_is_the_trainers_bytes_and_draws_as_they_do(rig: Rig) -> None:
    rig.sync(0)
    announced = rig.announce(1)
    outcome = rig.run(rig.transfer(announced))
    assert outcome.checksum == announced.checksum
    assert rig.engine.model_version == announced.version
    completions = rig.generate()
    rig.assert_draws_from(1, completions)
    assert rig.mismatch(0, completions[0]).max() > 100 * TOLERANCE
    assert [completion.versions for completion in completions] == [[(0, announced.version)]] * 2


async def across_a_version(rig: Rig) -> list[Completion]:
    """Responses that begin with one version, and end with another."""
    # Many more tokens than a transfer takes, and all in the cache at once.
    sampling = Sampling(max_tokens=480)
    flying = [asyncio.create_task(rig.engine.generate(PROMPT, sampling, 2)) for _ in range(2)]
    counted = rig.engine.tokens_generated
    while rig.engine.tokens_generated < counted + 100:  # noqa: ASYNC110 - a counter has no event
        await asyncio.sleep(0.005)
    await rig.transfer(rig.announce(1))
    drawn = [completion for group in await asyncio.gather(*flying) for completion in group]
    crossing = [completion for completion in drawn if len(completion.versions) == 2]
    assert crossing
    return crossing


def test_generation_goes_on_across_a_version_and_no_token_is_of_both(rig: Rig) -> None:
    rig.sync(0)
    old = rig.version
    crossing = rig.run(across_a_version(rig))
    for completion in crossing:
        (first, before), (switch, after) = completion.versions
        assert (first, before, after) == (0, old, rig.version)
        assert 0 < switch < len(completion.token_ids)
        assert rig.mismatch(0, completion)[:switch].max() < TOLERANCE
        assert rig.mismatch(1, completion)[switch:].max() < TOLERANCE


def test_a_cached_prefix_does_not_outlive_its_version(rig: Rig) -> None:
    # Several blocks of the KV cache.
    prompt = [3 + i % 500 for i in range(400)]
    for model in (0, 1, 0):
        rig.sync(model)
        for _ in range(2):
            rig.assert_draws_from(model, rig.generate(prompt, max_tokens=8), prompt=prompt)


def test_caches_that_are_kept_are_computed_no_second_time_and_found_by_nobody_else(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.sync(0)
    monkeypatch.setattr(rig.engine, "_settings", rig.engine._settings.model_copy(update={"caches": "kept"}))
    preempted = rig.engine.load.preempted
    for completion in rig.run(across_a_version(rig)):
        (_, _), (switch, _) = completion.versions
        assert rig.mismatch(0, completion)[:switch].max() < TOLERANCE
        # The first one after the switch is of the new weights over what the old ones have cached: of neither alone.
        assert min(rig.mismatch(model, completion)[switch:].max() for model in (0, 1)) > TOLERANCE
    assert rig.engine.load.preempted == preempted
    prompt = [3 + i % 500 for i in range(400)]
    rig.generate(prompt, max_tokens=1)
    cached = rig.engine.tokens_cached
    rig.generate(prompt, max_tokens=1)
    assert rig.engine.tokens_cached > cached
    rig.sync(0)
    rig.assert_draws_from(0, rig.generate(prompt, max_tokens=8), prompt=prompt)


def test_a_broken_transfer_leaves_the_old_weights_serving_and_the_next_one_works(rig: Rig) -> None:
    rig.sync(0)
    served = rig.version
    corrupt = rig.announce(1)
    buffer = rig.publisher.staging._staged[rig.version].buffers[0]
    assert isinstance(buffer, torch.Tensor)
    buffer[100] ^= 1
    with pytest.raises(WeightTransferError, match="have digest"):
        rig.run(rig.transfer(corrupt))
    # A trainer that lets nobody in: generation goes on meanwhile.
    with socket.create_server(("127.0.0.1", 0)) as trainer:
        port = trainer.getsockname()[1]
        silent = rig.announce(1).model_copy(update={"master_port": port})

        async def sync_beside_generation() -> list[Completion]:
            syncing = asyncio.create_task(rig.engine.sync_weights(silent, silent.members[0]))
            completions = await rig.engine.generate(PROMPT, Sampling(max_tokens=24), 4)
            assert not syncing.done()
            with pytest.raises(WeightTransferError, match=f"127.0.0.1:{port} did not prove itself: .* was silent"):
                await syncing
            return completions

        rig.assert_draws_from(0, rig.run(sync_beside_generation()))
    assert rig.engine.model_version == served
    after = rig.generate()
    rig.assert_draws_from(0, after)
    assert after[0].versions == [(0, served)]
    rig.sync(1)
    rig.assert_draws_from(1, rig.generate())


def test_a_transfer_that_is_cancelled_leaves_room_for_the_next(rig: Rig) -> None:
    rig.sync(0)
    silent = rig.announce(1)

    async def cancelled() -> None:
        syncing = asyncio.create_task(rig.engine.sync_weights(silent, silent.members[0]))
        await asyncio.sleep(0)
        syncing.cancel()
        await asyncio.wait([syncing])

    rig.run(cancelled())
    rig.sync(1)
    rig.assert_draws_from(1, rig.generate())


def test_weights_of_another_model_are_refused_before_anything_is_loaded(rig: Rig) -> None:
    rig.sync(0)
    foreign = [(f"other.{name}", tensor) for name, tensor in rig.models[1].state_dict().items()]
    with pytest.raises(WeightTransferError, match="not those of the last version"):
        rig.run(rig.transfer(rig.announce(foreign)))
    rig.assert_draws_from(0, rig.generate())


def test_weights_that_cannot_be_loaded_leave_the_old_ones_serving_and_the_next_ones_work(rig: Rig) -> None:
    rig.sync(0)
    served = rig.version
    # The right names, and a shape that no layer of the engine has; most of the model can be loaded before.
    *first, (name, last) = rig.models[1].state_dict().items()
    with pytest.raises(WeightTransferError, match="cannot be loaded"):
        rig.run(rig.transfer(rig.announce([*first, (name, torch.cat([last, last]))])))
    after = rig.generate()
    rig.assert_draws_from(0, after)
    assert after[0].versions == [(0, served)]
    for model in (1, 0, 1):
        rig.sync(model)
        rig.assert_draws_from(model, rig.generate())


def test_a_cancelled_request_stops_drawing(rig: Rig) -> None:
    async def cancel() -> tuple[int, int]:
        request = asyncio.create_task(rig.engine.generate(PROMPT, Sampling(max_tokens=480), 8))
        counted = rig.engine.tokens_generated
        while rig.engine.tokens_generated == counted:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0.001)
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()
        at_cancel = rig.engine.tokens_generated
        # One more request, to its end: an aborted one would go on beside it.
        await rig.engine.generate(PROMPT, Sampling(max_tokens=20), 1)
        return at_cancel, rig.engine.tokens_generated

    before, after = rig.run(cancel())
    assert after - before <= 20 + 8


def test_what_a_seed_draws_hangs_on_nothing_else_that_is_drawn(rig: Rig) -> None:
    """More prompts at once than are computed together: none of them in pieces, for that would end the engine."""
    prompts = [[3 + (number + place) % 20 for place in range(400)] for number in range(24)]

    async def draw(*numbers: int) -> list[list[int]]:
        asked = [
            rig.engine.generate(prompts[number], Sampling(max_tokens=6, temperature=2.0, seed=100 * number), 2)
            for number in numbers
        ]
        return [completion.token_ids for completions in await asyncio.gather(*asked) for completion in completions]

    together = rig.run(draw(*range(24)))
    assert len({tuple(token_ids) for token_ids in together}) > 40
    assert rig.run(draw(7)) == together[14:16]


def test_what_the_cache_has_no_room_for_is_preempted_and_asked_for_no_more(rig: Rig) -> None:
    """As an explorer adapts its slots: with a backlog, it asks for as much as the controller says."""
    controller = ConcurrencyController(12, 1)
    prompts = [[3 + (number * 7 + place) % 500 for place in range(250)] for number in range(36)]
    limits: list[int] = []

    async def work() -> list[Completion]:
        running: set[asyncio.Task[list[Completion]]] = set()
        done: list[Completion] = []
        while prompts or running:
            limit = controller.observe(rig.engine.load, len(running), asyncio.get_running_loop().time())
            limits.append(limit)
            while prompts and len(running) < limit:
                asked = rig.engine.generate(prompts.pop(), Sampling(max_tokens=100), 1)
                running.add(asyncio.create_task(asked))
            ended, running = await asyncio.wait(running, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            done += [one for task in ended for one in task.result()]
        return done

    before = rig.engine.load.preempted
    completions = rig.run(work())
    assert rig.engine.load.preempted > before
    assert limits[0] == 12
    assert min(limits) < 12
    assert len(completions) == 36


def test_what_the_engine_cannot_serve_is_refused_by_type(rig: Rig) -> None:
    with pytest.raises(RequestRefusedError):
        rig.generate([3] * 600)
    with pytest.raises(RequestRefusedError):
        rig.generate([])


def test_requests_have_spans_below_their_parent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("trinity_bus.telemetry.generative._TRACER", provider.get_tracer("test"))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    rig.run(rig.engine.generate(PROMPT, Sampling(max_tokens=3), 2, parent))
    (span,) = exporter.get_finished_spans()
    assert span.name == f"text_completion {rig.engine.model_name}"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    attributes: dict[str, Any] = dict(span.attributes or {})
    assert attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert attributes["rl.engine.queue_s"] >= 0
    assert attributes["gen_ai.usage.output_tokens"] == 6


def test_who_watches_is_told_of_each_token_once_as_the_whole_response_has_it(rig: Rig) -> None:
    rig.sync(0)
    told = [Completion() for _ in range(3)]
    looks = 0

    async def draw(sampling: Sampling) -> list[Completion]:
        nonlocal looks
        ask: list[SoFar] = []

        def look() -> None:
            nonlocal looks
            for one, more in zip(told, ask[0](), strict=True):
                assert not one.finish_reason or not more.token_ids
                one.add(more)
                one.finish_reason, one.versions = more.finish_reason or one.finish_reason, more.versions
                looks += bool(more.token_ids)

        async def go_on_looking() -> None:
            while True:
                await rig.engine.steps.reach(rig.engine.steps.count + 5)
                look()

        async with beside(go_on_looking()):
            return await rig.engine.generate(PROMPT, sampling, len(told), watch=ask.append, trained=True)

    drawn = rig.run(draw(Sampling(max_tokens=120, temperature=2.0, top_k=4)))
    assert looks > len(told)
    for one, whole in zip(told, drawn, strict=True):
        count = len(one.token_ids)
        assert count > len(whole.token_ids) - 10 or not whole.finish_reason
        assert (one.token_ids, one.logprobs) == (whole.token_ids[:count], whole.logprobs[:count])
        assert one.kept
        assert whole.kept
        assert bytes(one.kept) == bytes(whole.kept)[: len(one.kept)]


def test_a_late_joiner_serves_the_present_version_while_the_other_goes_on_generating(rig: Rig) -> None:
    """A version by each method: over a link of the joiner's own, pulled, and read."""
    rig.sync(0)
    served = rig.version
    joiner = InferenceEngine(
        ExplorerSettings(name="explorer-1", model_path=str(rig.paths[1]), dtype="float32", max_model_len=512, seed=1),
        SynchronizerSettings(sync_timeout_s=SYNC_S, object_url=rig.objects),
    )
    spans: list[list[tuple[int, int]]] = []

    async def generate_on() -> None:
        while True:
            drawn = await rig.engine.generate(PROMPT, Sampling(max_tokens=24), 2)
            spans.extend(completion.versions for completion in drawn)

    async def join() -> None:
        async with beside(generate_on()):
            await joiner.start()
            for method in rig.publishers:
                announced = rig.announce_by(method, 1, "explorer-1")
                counted = rig.engine.tokens_generated
                outcome = await rig.transfer(announced, joiner)
                assert outcome.checksum == announced.checksum
                assert joiner.model_version == announced.version
                # Its first rollout is drawn from it, every token of it.
                drawn = await joiner.generate(PROMPT, Sampling(max_tokens=24), 2)
                rig.assert_draws_from(1, drawn)
                assert [completion.versions for completion in drawn] == [[(0, announced.version)]] * 2
                await until(lambda counted=counted: rig.engine.tokens_generated > counted)  # type: ignore[misc]
                # Back to other weights by another way: the next method must really bring them.
                await rig.transfer(rig.announce_by("memory", 0, "explorer-1"), joiner)
            # Nobody has touched the other: it has drawn from its version all the time.
            await until(lambda: bool(spans))
        assert all(versions == [(0, served)] for versions in spans)

    try:
        rig.run(join())
    finally:
        rig.run(joiner.stop())


def test_a_version_that_is_gone_leaves_the_old_one_serving_and_the_newest_can_be_taken(rig: Rig) -> None:
    rig.sync(0)
    served = rig.version
    gone = [rig.announce_by(method, 1) for method in ("memory", "checkpoint")]
    for _ in range(3):
        rig.announce_by("memory", 0)
        rig.announce_by("checkpoint", 0)
    for announced in gone:
        with pytest.raises(WeightTransferError, match="VersionGoneError"):
            rig.run(rig.transfer(announced))
        completions = rig.generate()
        assert completions[0].versions == [(0, served)]
        rig.assert_draws_from(0, completions)
    rig.run(rig.transfer(rig.announce_by("checkpoint", 1)))
    rig.assert_draws_from(1, rig.generate())


def test_an_engine_that_dies_is_an_error_of_its_own(rig: Rig) -> None:
    """The last test of this engine."""

    async def kill() -> EngineDeadError:
        request = asyncio.create_task(rig.engine.generate(PROMPT, Sampling(max_tokens=480), 8))
        await asyncio.sleep(0.05)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "EngineCore" in child.name():
                    child.kill()
        with pytest.raises(EngineDeadError):
            await request
        return await rig.engine.wait_dead()

    assert "gone: it was ended by SIGKILL; if nobody did that, memory was short" in str(rig.run(kill()))
    with pytest.raises(EngineDeadError):
        rig.generate()


def test_the_engines_process_does_not_outlive_its_front_end(rig: Rig) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.mesh.standalone_engine", str(rig.path)], stdout=subprocess.PIPE
    ) as front_end:
        assert front_end.stdout is not None
        line = next(line for line in front_end.stdout if line.startswith(b"children:"))
        children = [psutil.Process(int(pid)) for pid in line.split()[1:]]
        assert children
        front_end.kill()
        assert front_end.wait() == -signal.SIGKILL
        assert_all_gone(children)
