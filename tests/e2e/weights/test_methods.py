"""Two real vLLM engines, one of them a late joiner, and versions that come on every way."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks._tiny_model import make_tiny_qwen3
from schemas import ModelVersion, Sampling
from tests.support.faults.transfers import announcement
from tests.support.reference import mismatch
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings, SynchronizerSettings, TrainerSettings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.inference.weight_sync import SyncOutcome
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.weights.errors import WeightTransferError
from workers.trainer.engines import Publisher, make_publisher

pytestmark = [
    pytest.mark.e2e,
    # vLLM and what it imports warn of their own use of each other.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

OLD = "explorer-0"
JOINER = "explorer-1"
TOLERANCE = 1e-3
PROMPT = [3, 4, 5, 6, 7]
METHODS = ("nccl", "memory", "checkpoint")


class Rig:
    """A trainer that publishes on every way, an engine that has long been there, and one that joins."""

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        from transformers import AutoModelForCausalLM

        paths = [make_tiny_qwen3(folder / str(seed), seed=seed) for seed in range(2)]
        self.paths = paths
        # bfloat16 values, so that what is computed from them is the same however they travel.
        self.models: list[Any] = [
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).float() for path in paths
        ]
        self.runner = runner
        self.checkpoints = folder / "checkpoints"
        self.publishers: dict[str, Publisher] = {
            method: make_publisher(
                TrainerSettings(bucket_mib=1),
                SynchronizerSettings(sync_method=method, sync_dtype="bfloat16", sync_timeout_s=15),
                self.checkpoints,
                "cpu",
            )
            for method in METHODS
        }
        self.engines = {
            name: InferenceEngine(
                ExplorerSettings(name=name, model_path=str(path), dtype="float32", max_model_len=512, seed=1),
                sync_timeout_s=15,
            )
            for name, path in zip((OLD, JOINER), paths, strict=True)
        }
        self.version = 39

    def announce(self, method: str, model: int, *explorers: str) -> ModelVersion:
        """Save and stage a model's weights as the next version."""
        self.version += 1
        weights = self.models[model].state_dict()
        self.models[model].save_pretrained(checkpoint.begin(self.checkpoints, self.version))
        progress = TrainingProgress(step=self.version, version=self.version)
        folder = checkpoint.commit(self.checkpoints, progress, WrittenBy(dtype="float32"), keep=2)
        publisher = self.publishers[method]
        checksum = publisher.stage(self.version, weights.items())
        return announcement(publisher, self.version, checksum, *explorers, epoch=self.version, folder=folder)

    async def transfer(self, method: str, announced: ModelVersion, explorer: str) -> SyncOutcome:
        return await self.engines[explorer].sync_weights(announced, announced.members[0])

    def sync(self, method: str, model: int, explorer: str) -> SyncOutcome:
        return self.runner.run(self.transfer(method, self.announce(method, model, explorer), explorer))

    def mismatch(self, model: int, completion: Completion) -> float:
        """How far the engine's logprobs are from those that transformers computes with a model's weights."""
        return float(mismatch(self.models[model], PROMPT, completion.token_ids, completion.logprobs).max())

    async def generate(self, explorer: str, tokens: int = 24) -> list[Completion]:
        return await self.engines[explorer].generate(PROMPT, Sampling(max_tokens=tokens), 2)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with asyncio.Runner() as runner:
        made = Rig(tmp_path_factory.mktemp("models"), runner)
        runner.run(made.engines[OLD].start())
        yield made
        for engine in made.engines.values():
            runner.run(engine.stop())
        for publisher in made.publishers.values():
            publisher.close()


def test_a_late_joiner_serves_the_present_version_while_the_other_goes_on_generating(rig: Rig) -> None:
    """Version 40 by each method: pulled, read, and over a link of the joiner's own."""
    rig.sync("memory", 0, OLD)
    served = rig.version

    async def join() -> None:
        busy = True
        spans: list[list[tuple[int, int]]] = []

        async def generate_on() -> None:
            while busy:
                spans.extend(completion.versions for completion in await rig.generate(OLD))

        generating = asyncio.create_task(generate_on())
        try:
            await rig.engines[JOINER].start()
            for method in METHODS:
                announced = rig.announce(method, 1, JOINER)
                counted = rig.engines[OLD].tokens_generated
                outcome = await rig.transfer(method, announced, JOINER)
                assert outcome.checksum == announced.checksum
                assert rig.engines[JOINER].model_version == announced.version
                # Its first rollout is drawn from it, every token of it.
                for completion in await rig.generate(JOINER):
                    assert rig.mismatch(1, completion) < TOLERANCE
                    assert completion.versions == [(0, announced.version)]
                assert rig.engines[OLD].tokens_generated > counted
                # Back to other weights by another way: the next method must really bring them.
                await rig.transfer("memory", rig.announce("memory", 0, JOINER), JOINER)
        finally:
            busy = False
            await generating
        # Nobody has touched the other: it has drawn from its version all the time.
        assert spans
        assert all(versions == [(0, served)] for versions in spans)

    rig.runner.run(join())


def test_a_version_that_is_gone_leaves_the_old_one_serving_and_the_newest_can_be_taken(rig: Rig) -> None:
    rig.sync("memory", 0, OLD)
    served = rig.version
    gone = {method: rig.announce(method, 1, OLD) for method in ("memory", "checkpoint")}
    for _ in range(3):
        rig.announce("memory", 0)
        rig.announce("checkpoint", 0)
    for method, announced in gone.items():
        with pytest.raises(WeightTransferError, match="VersionGoneError"):
            rig.runner.run(rig.transfer(method, announced, OLD))
        completions = rig.runner.run(rig.generate(OLD))
        assert completions[0].versions == [(0, served)]
        assert rig.mismatch(0, completions[0]) < TOLERANCE
    rig.sync("checkpoint", 1, OLD)
    for completion in rig.runner.run(rig.generate(OLD)):
        assert rig.mismatch(1, completion) < TOLERANCE
