"""Real vLLM servers as an explorer's engine: exact tokens, versions from checkpoints amid responses, their deaths."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks._tiny_model import make_tiny_qwen3
from schemas import ModelVersion, Sampling
from tests.support.faults.transfers import announcement
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import until
from tests.support.reference import likely, mismatch
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.errors import EngineStartError, GenerationError, RequestRefusedError
from trinity_bus.inference.server.engine import ServerEngine
from trinity_bus.runtime.process import Child
from trinity_bus.training import checkpoint
from trinity_bus.training import tensors as hf_folder
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.checkpoint.writing import write_companions
from trinity_bus.weights.checkpoint import CheckpointPublisher
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.transport import source_of

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

PROMPT = [3, 4, 5, 6, 7]
NAME = "explorer-0"
KEY = "a-key-of-the-server"
TOLERANCE = 1e-3
LENGTH = 512


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [make_tiny_qwen3(tmp_path / str(seed), seed=seed) for seed in range(2)]


@contextmanager
def serving(model: Path, port: int, log: Path) -> Iterator[Child]:
    command: list[str | Path] = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--dtype", "float32"),
        *("--max-model-len", str(LENGTH), "--enforce-eager", "--generation-config", "vllm", "--api-key", KEY),
        *("--served-model-name", "policy", "--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    env = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_PLUGINS": "",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with Child(command, env=env, output=log) as child:
        yield child


def settings(urls: str, model: Path, **more: object) -> ExplorerSettings:
    return ExplorerSettings.model_validate(
        {"name": NAME, "model_path": str(model), "max_model_len": LENGTH, "engine_url": urls, "engine_key": KEY, **more}
    )


def published(model: Path, directory: Path, version: int) -> ModelVersion:
    """Write a checkpoint as a trainer does, the optimizer's tensors among its files."""
    directory.mkdir(exist_ok=True)
    folder = checkpoint.begin(directory, version)
    tensors = load_file(model / "model.safetensors")
    save_file({"exp_avg.model.norm.weight": torch.ones(3)}, folder / "optimizer.safetensors")
    write_companions(folder, model, None)
    hf_folder.write_weights(folder, tensors.items)
    progress = TrainingProgress(step=version, version=version)
    written = checkpoint.commit(directory, progress, WrittenBy(dtype="float32"), keep=2)
    publisher = CheckpointPublisher(directory)
    checksum = publisher.stage(version, tensors.items())
    return announcement(publisher, version, checksum, NAME, folder=written, epoch=version)


async def drawn_over(engine: ServerEngine, announced: ModelVersion) -> Completion:
    """Draw a long response, while a version is taken."""
    stream = engine.stream(PROMPT, Sampling(max_tokens=400, ignore_eos=True))
    _, whole = await anext(stream)
    syncing = asyncio.create_task(engine.sync_weights(announced, announced.members[0]))
    async for _, more in stream:
        whole.token_ids += more.token_ids
        whole.logprobs += more.logprobs
        whole.versions = more.versions
    outcome = await syncing
    assert (outcome.checksum, engine.model_version) == (announced.checksum, announced.version)
    return whole


def differs(model: Path, one: Completion, first: int = 0, last: int | None = None) -> float:
    return mismatch(model, PROMPT, one.token_ids, one.logprobs)[first:last].max().item()


async def test_a_server_draws_follows_checkpoints_and_is_missed(models: list[Path], tmp_path: Path) -> None:
    (port,) = quiet_ports(1)
    url = f"http://127.0.0.1:{port}"
    with serving(models[0], port, tmp_path / "server.log") as child:
        wrong = ServerEngine(settings(url, models[0], engine_key="another"))
        with pytest.raises(EngineStartError, match="engine_key"):
            await wrong.start()
        await wrong.stop()
        engine = ServerEngine(settings(url, models[0]), sync_timeout_s=60)
        await engine.start()
        try:
            assert engine.bounds.positions >= LENGTH
            drawn = await engine.generate(PROMPT, Sampling(max_tokens=8, temperature=2.0, ignore_eos=True), 2)
            for one in drawn:
                assert len(one.token_ids) == 8
                assert one.versions == []
                assert mismatch(models[0], PROMPT, one.token_ids, one.logprobs, 2.0).max() < TOLERANCE
            streamed = [more async for _, more in engine.stream(PROMPT, Sampling(max_tokens=4, ignore_eos=True))]
            token_ids = [token for more in streamed for token in more.token_ids]
            assert len(token_ids) == 4
            assert [more.finish_reason for more in streamed if more.finish_reason] == ["length"]
            assert await engine.score([*PROMPT, *token_ids], len(PROMPT)) == pytest.approx(
                likely(models[0], PROMPT, token_ids).tolist(), abs=TOLERANCE
            )
            many = Sampling(max_tokens=2, top_p=0.9, stop=["t7 t7"], logit_bias={"9": 1.0}, allowed_token_ids=[8, 9])
            assert set((await engine.generate(PROMPT, many))[0].token_ids) <= {8, 9}
            with pytest.raises(RequestRefusedError):
                await engine.generate([3] * (LENGTH + 1), Sampling(max_tokens=4))

            first = published(models[1], tmp_path / "checkpoints", 7)
            with pytest.raises(WeightTransferError):
                await engine.sync_weights(first.model_copy(update={"checksum": "0" * 64}), first.members[0])
            # One that it cannot load whole leaves nothing that the next one does not replace.
            half = replace(source_of(first, NAME), folder=str(tmp_path))
            with pytest.raises(GenerationError):
                await engine._members[0].take(half, 60, keep_caches=False)
            assert engine._members[0].label is None
            await engine._members[0].take(replace(half, folder=str(models[0]), prefix="again"), 60, keep_caches=False)
            # What is under way goes on, and each token is of the version that is told, or of none at the beginning.
            over = await drawn_over(engine, first)
            ((start, version),) = over.versions
            assert version == 7
            assert 0 < start < 400
            assert differs(models[0], over, 0, start) < TOLERANCE
            assert differs(models[1], over, start) < TOLERANCE
            # With the entries of its cache, too, which later requests do not find.
            engine._settings = settings(url, models[0], caches="kept")
            prefix, brief = [*PROMPT, *over.token_ids[:300]], Sampling(max_tokens=8, ignore_eos=True)
            await engine.generate(prefix, brief)
            over = await drawn_over(engine, published(models[0], tmp_path / "checkpoints", 8))
            (_, (start, _)) = over.versions
            assert over.versions == [(0, 7), (start, 8)]
            assert differs(models[1], over, 0, start) < TOLERANCE
            (new,) = await engine.generate(prefix, brief)
            assert new.versions == [(0, 8)]
            assert mismatch(models[0], prefix, new.token_ids, new.logprobs).max() < TOLERANCE

            child.kill()
            assert "gone" in str(await asyncio.wait_for(engine.wait_dead(), 60))
        finally:
            await engine.stop()


async def test_a_server_that_was_killed_comes_back_beside_another_and_takes_the_version(
    models: list[Path], tmp_path: Path
) -> None:
    ports = quiet_ports(2)
    engine = ServerEngine(
        settings(",".join(f"http://127.0.0.1:{port}" for port in ports), models[0]), sync_timeout_s=60
    )

    def states() -> list[tuple[str, int]]:
        return [(one.state, one.model_version) for one in engine.members]

    log = tmp_path / "server.log"
    with serving(models[0], ports[0], log):
        try:
            with serving(models[0], ports[1], log) as killed:
                await engine.start()
                looking = asyncio.create_task(engine.wait_dead())
                await until(lambda: states() == [("serving", -1)] * 2, 120)
                version = published(models[1], tmp_path / "checkpoints", 7)
                await engine.sync_weights(version, version.members[0])
                assert states() == [("serving", 7)] * 2
                killed.kill()
                await until(lambda: states() == [("serving", 7), ("gone", 7)], 60)
            brief = Sampling(max_tokens=8, ignore_eos=True)
            for drawn in await asyncio.gather(*(engine.generate(PROMPT, brief) for _ in range(4))):
                assert drawn[0].versions == [(0, 7)]
            with serving(models[0], ports[1], log):
                await until(lambda: states() == [("serving", 7)] * 2, 300)
                # Each is asked, and has the weights.
                for drawn in await asyncio.gather(*(engine.generate(PROMPT, brief) for _ in range(4))):
                    assert drawn[0].versions == [(0, 7)]
                    assert differs(models[1], drawn[0]) < TOLERANCE
                assert not looking.done()
                looking.cancel()
        finally:
            await engine.stop()
