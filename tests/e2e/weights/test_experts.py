"""A real vLLM engine with a tiny random mixture of experts on a CPU: it draws by each version that it takes."""

import asyncio
from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks._tiny_model import make_tiny_qwen3
from schemas import Sampling
from tests.support.cuda_standin.children import mix
from tests.support.faults.transfers import announcement
from tests.support.reference import mismatch
from tests.support.sampled import at_night
from trinity_bus.config import ExplorerSettings, SynchronizerSettings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.weights.pull.server import WeightServer

# vLLM and what it imports warn of their own use of each other.
pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

NAME = "explorer-0"
PROMPT = [3, 4, 5, 6, 7]


@pytest.mark.parametrize("ranks", [1, at_night(2)])
async def test_each_version_of_experts_is_drawn_by(tmp_path: Path, ranks: int) -> None:
    folders = [make_tiny_qwen3(tmp_path / str(seed), seed=seed) for seed in range(2)]
    for seed, folder in enumerate(folders):
        mix(folder, seed=seed, initializer_range=0.1)
    settings = ExplorerSettings(
        name=NAME,
        model_path=str(folders[0]),
        dtype="float32",
        max_model_len=64,
        seed=1,
        cpu_kvcache_gib=0.01,
        tensor_parallel_size=ranks,
    )
    engine = InferenceEngine(settings, SynchronizerSettings())
    server = WeightServer(bucket_bytes=1 << 20, timeout_s=60, method="gloo")
    await engine.start()
    try:
        for version, at in enumerate([0, 1, 0]):
            weights = load_file(folders[at] / "model.safetensors")
            checksum = await asyncio.to_thread(server.stage, version, weights.items())
            told = announcement(server, version, checksum, NAME, epoch=version)
            await engine.sync_weights(told, told.members[0])
            for one in await engine.generate(PROMPT, Sampling(max_tokens=24), 2):
                assert one.versions == [(0, version)]
                assert mismatch(folders[at], PROMPT, one.token_ids, one.logprobs).max() < 1e-3
                assert mismatch(folders[1 - at], PROMPT, one.token_ids, one.logprobs).max() > 0.1
    finally:
        await engine.stop()
        server.close()
