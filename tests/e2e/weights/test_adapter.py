"""Adapters published alone, served beside the base by one real vLLM engine: what is served is what is trained."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks._tiny_model import make_tiny_qwen3
from schemas import Sampling
from tests.support.fakes.experiences import make_group
from tests.support.faults.transfers import announcement
from tests.support.reference import mismatch
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings, Settings, TrainerSettings
from trinity_bus.inference.completion import completion_of
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.inference.sampling import sampling_arguments, vllm_parameters
from trinity_bus.training.engines.adapters import FOLDER
from trinity_bus.training.engines.saving import export
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.tensor_file import BASE
from workers.trainer.engines import PublishedTensors

pytestmark = [
    pytest.mark.e2e,
    # vLLM and what it imports warn of their own use of each other.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
]

PROMPT = [3, 4, 5, 6, 7]
TOLERANCE = 1e-5
type Named = Iterator[tuple[str, torch.Tensor]]


def distance(folder: Path, completion: Completion) -> float:
    return float(mismatch(folder, PROMPT, completion.token_ids, completion.logprobs).max())


def test_what_is_served_is_what_is_trained(tmp_path: Path) -> None:
    base = make_tiny_qwen3(tmp_path / "base", seed=0)
    settings = TrainerSettings(
        model_path=str(base), engine="torch", lora_rank=3, lora_alpha=6.0, adapter_rank=3, learning_rate=3e-2
    )
    trainer = TorchEngine(settings)
    published = PublishedTensors(trainer, Settings(trainer=settings))
    publisher = WeightServer(bucket_bytes=1 << 20, timeout_s=30.0, method="gloo")
    engine = InferenceEngine(
        ExplorerSettings(model_path=str(base), dtype="float32", max_model_len=64, seed=1, adapter_rank=3),
    )

    async def take(version: int, tensors: Named) -> int:
        checksum = publisher.stage(version, tensors)
        announced = announcement(publisher, version, checksum, "explorer-0", epoch=version)
        return (await engine.sync_weights(announced, announced.members[0])).nbytes

    async def drawn() -> Completion:
        (found,) = await engine.generate(PROMPT, Sampling(max_tokens=16, ignore_eos=True))
        return found

    def of_another_base() -> Named:
        for name, tensor in published.now():
            yield name, torch.zeros_like(tensor) if name == BASE else tensor

    async def exported() -> Completion:
        from vllm.inputs import tokens_input
        from vllm.lora.request import LoRARequest

        how: dict[str, Any] = sampling_arguments(Sampling(ignore_eos=True), 1, temperature=1.0, max_tokens=16)
        adapter = LoRARequest("exported", 2, str(tmp_path / "2" / FOLDER))
        outputs = engine.llm.generate(tokens_input(PROMPT), vllm_parameters(how), "exported", lora_request=adapter)
        return completion_of([output async for output in outputs][-1].outputs[0])

    async def run() -> None:
        await engine.start()
        try:
            assert distance(base, await drawn()) < TOLERANCE
            for version in (1, 2):
                trainer.train_step([make_group()])
                folder = trainer.save_checkpoint(tmp_path / "checkpoints", trainer.progress).result()
                export(folder, tmp_path / str(version), base, trainer.settings)
                assert await take(version, published.now()) < (base / "model.safetensors").stat().st_size / 2
                response = await drawn()
                assert response.versions == [(0, version)]
                assert distance(tmp_path / str(version), response) < TOLERANCE
                assert distance(base, response) > 100 * TOLERANCE
            with pytest.raises(WeightTransferError, match="not for the weights that this engine has loaded"):
                await take(3, of_another_base())
            assert distance(tmp_path / "2", await drawn()) < TOLERANCE
            # What other programs read is the same.
            assert distance(tmp_path / "2", await exported()) < TOLERANCE
        finally:
            await engine.stop()

    try:
        asyncio.run(run())
    finally:
        publisher.close()
