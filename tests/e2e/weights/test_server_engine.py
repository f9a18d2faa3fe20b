"""A real vLLM server as an explorer's engine: exact tokens, a version after the other from checkpoints, its death."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks._tiny_model import make_tiny_qwen3
from schemas import Sampling
from tests.support.faults.transfers import announcement
from tests.support.reference import likely, mismatch
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.errors import EngineStartError, RequestRefusedError
from trinity_bus.inference.server.engine import ServerEngine
from trinity_bus.runtime.process import Child
from trinity_bus.training import checkpoint
from trinity_bus.training import tensors as hf_folder
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.checkpoint.writing import write_companions
from trinity_bus.weights.checkpoint import CheckpointPublisher
from trinity_bus.weights.errors import WeightTransferError

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

PROMPT = [3, 4, 5, 6, 7]
NAME = "explorer-0"
KEY = "a-key-of-the-server"
TOLERANCE = 1e-3


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [make_tiny_qwen3(tmp_path / str(seed), seed=seed) for seed in range(2)]


@pytest.fixture
def server(models: list[Path], tmp_path: Path) -> Iterator[tuple[str, Child]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command: list[str | Path] = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", models[0], "--dtype", "float32"),
        *("--max-model-len", "64", "--enforce-eager", "--generation-config", "vllm", "--api-key", KEY),
        *("--logprobs-mode", "processed_logprobs", "--host", "127.0.0.1", "--port", str(port)),
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
    with Child(command, env=env, output=tmp_path / "server.log") as child:
        yield f"http://127.0.0.1:{port}", child


def settings(url: str, model: Path, **more: object) -> ExplorerSettings:
    return ExplorerSettings.model_validate(
        {"name": NAME, "model_path": str(model), "max_model_len": 64, "engine_url": url, "engine_key": KEY, **more}
    )


async def test_a_server_draws_follows_checkpoints_and_is_missed(
    server: tuple[str, Child], models: list[Path], tmp_path: Path
) -> None:
    url, child = server
    wrong = ServerEngine(settings(url, models[0], engine_key="another"))
    with pytest.raises(EngineStartError, match="engine_key"):
        await wrong.start()
    await wrong.stop()
    engine = ServerEngine(settings(url, models[0]), sync_timeout_s=60)
    await engine.start()
    try:
        assert engine.bounds.positions >= 64
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
        with pytest.raises(RequestRefusedError):
            await engine.generate([3] * 65, Sampling(max_tokens=4))
        assert engine.tokens_generated == 20

        # A checkpoint as a trainer writes it, the optimizer's tensors among its files.
        directory = tmp_path / "checkpoints"
        directory.mkdir()
        folder = checkpoint.begin(directory, 7)
        tensors = load_file(models[1] / "model.safetensors")
        save_file({"exp_avg.model.norm.weight": torch.ones(3)}, folder / "optimizer.safetensors")
        write_companions(folder, models[1], None)
        hf_folder.write_weights(folder, tensors.items)
        written = checkpoint.commit(directory, TrainingProgress(step=7, version=7), WrittenBy(dtype="float32"), keep=2)
        publisher = CheckpointPublisher(directory)
        checksum = publisher.stage(7, tensors.items())
        announced = announcement(publisher, 7, checksum, NAME, folder=written)
        member = announced.members[0]
        with pytest.raises(WeightTransferError):
            await engine.sync_weights(announced.model_copy(update={"checksum": "0" * 64}), member)
        # What is under way ends with the version that it began with; what comes meanwhile has the next.
        before = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=48, ignore_eos=True)))
        await asyncio.sleep(0)
        outcome = await engine.sync_weights(announced, member)
        assert (outcome.checksum, engine.model_version) == (checksum, 7)
        (old,), (new,) = await before, await engine.generate(PROMPT, Sampling(max_tokens=8, ignore_eos=True))
        assert (old.versions, new.versions) == ([], [(0, 7)])
        for model, one in zip(models, (old, new), strict=True):
            assert mismatch(model, PROMPT, one.token_ids, one.logprobs).max() < TOLERANCE

        child.kill()
        assert "gone" in str(await asyncio.wait_for(engine.wait_dead(), 60))
    finally:
        await engine.stop()
