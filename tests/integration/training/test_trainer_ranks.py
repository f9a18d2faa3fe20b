"""The trainer service with two ranks, on a real broker: it trains what one trains, and a rank's death ends it well."""

import asyncio
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from schemas import ExperienceGroup, StepTrained, TokenFigures, TrainerHeartbeat
from schemas.token_figures import FLOAT16
from schemas.topics import TOKEN_FIGURES, TRAINER_EVENTS
from tests.integration.training.trainers import (
    DEADLINE_S,
    Trainer,
    batches_of,
    produce,
    step_is,
    train_to_the_end,
    trained,
    until,
)
from tests.support.fakes.tiny_trainer import write_model
from tests.support.sampled import at_night
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings, TrainerSettings
from trinity_bus.runtime.process import start_time
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.megatron import parallel
from trinity_bus.training.ranks.followers import ChildRanks, Followers, followers_of
from trinity_bus.training.ranks.multi_rank_engine import MultiRankEngine
from trinity_bus.training.steps.token_figures import SampleFigures
from trinity_bus.weights.staging import Staging
from workers.trainer.engines import PublishedTensors, read_tensors

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SMALL_RATE = 0.002
"""With it rounding, which AdamW makes as large as a step where a gradient is next to nothing, stays small over nine."""
COMPARED = ("loss", "grad_norm", "entropy", "rollout_k3", "reward_mean", "trained_tokens")


def checksum_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    return Staging(bucket_bytes=16 << 20, retain=1).stage(0, tensors).checksum


def other_ranks(trainer: Trainer) -> list[int]:
    """The process that was rank 1 of each incarnation so far."""
    return [int(pid) for pid in re.findall(r"the others: process (\d+)", trainer.log.read_text())]


def compare(told: dict[str, TokenFigures], alone: list[SampleFigures], groups: list[ExperienceGroup]) -> None:
    """Whether the log has the figures by token that one rank keeps, each at its sample."""
    places = [(group.task_id, number) for group in groups for number in range(len(group))]
    assert sum(len(record.samples) for record in told.values()) == len(alone)
    assert alone
    for one in alone:
        task_id, number = places[one.number]
        found = told[task_id].of(number)
        assert found is not None, (task_id, number)
        gaps, entropies, updates = found
        assert updates == one.updates_before
        assert gaps.astype(float) == pytest.approx(np.frombuffer(one.gaps, FLOAT16).astype(float), abs=2e-3)
        assert entropies.astype(float) == pytest.approx(np.frombuffer(one.entropies, FLOAT16).astype(float), abs=1e-2)


@pytest.mark.parametrize("layout", ["tensor_parallel", at_night("data_parallel")])
async def test_two_ranks_train_what_one_trains_and_outlive_the_death_of_one(
    layout: str, namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    model, batches = write_model(tmp_path / "model"), batches_of(3)
    figures: dict[int, dict[str, TokenFigures]] = defaultdict(dict)

    async def together() -> list[StepTrained]:
        kafka = namespaced()
        trainer = Trainer(kafka, tmp_path / "two", model, total_steps=3, learning_rate=SMALL_RATE, **{layout: 2})
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, batches[:2])
            async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
                with trainer.running() as process:
                    first = trained(await until(events, step_is(2), process))
                    (second_rank,) = other_ranks(trainer)
                    # It is killed within a step: rank 0 waits for it in a collective.
                    os.kill(second_rank, signal.SIGSTOP)
                    await produce(bus, batches[2:], first=3)
                    await until(events, lambda r: isinstance(r, TrainerHeartbeat) and r.state == "training", process)
                    os.kill(second_rank, signal.SIGKILL)
                    assert await asyncio.to_thread(process.wait, DEADLINE_S) == 1
            log = trainer.log.read_text()
            assert f"RankError: rank 1 of 2 (process {second_rank}) was ended by SIGKILL" in log
            assert "ended by force" not in log
            said = [*first, *(await train_to_the_end(bus, trainer, 3))[len(first) :]]
            async with bus.reader(TOKEN_FIGURES, start="beginning") as told:
                async for received in told.replay():
                    assert isinstance(received.record, TokenFigures)
                    figures[received.record.step][received.record.task_id] = received.record
            assert [start_time(pid) for pid in other_ranks(trainer)] == [None, None], "no rank outlives the service"
            return said

    said = await together()
    assert [step.step for step in said] == [0, 1, 2, 2, 3]
    settings = TrainerSettings(model_path=str(model), learning_rate=SMALL_RATE, mini_batches=3)
    try:
        alone = MegatronEngine(settings)
        weight_names = [name for name, _ in alone.hf_tensors()]
        assert said[0].checksum == checksum_of(alone.hf_tensors()), "nothing is trained yet, and what is split is whole"
        for ours, groups in zip([*said[1:3], said[4]], batches, strict=True):
            theirs = alone.train_step(groups)
            compare(figures[ours.step], alone.take_figures(), groups)
            for metric in COMPARED:
                assert ours.metrics[metric] == pytest.approx(theirs[metric], rel=2e-3, abs=1e-5), metric
            folder = tmp_path / f"two/checkpoints/step-{ours.step:08d}"
            assert ours.checksum == checksum_of(read_tensors(folder / "model.safetensors", weight_names)), (
                "what is published is what is kept"
            )
        assert said[3].checksum == said[2].checksum, "the second incarnation goes on from where the first one was"
        trained_together = load_file(folder / "model.safetensors")
        for name, tensor in alone.hf_tensors():
            # Rounding shows where AdamW divides a small gradient by itself.
            assert (tensor - trained_together[name]).abs().mean() < 1e-5, name
    finally:
        parallel.shut_down()


async def test_a_stop_amid_a_step_ends_all_ranks_in_order(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    kafka, batches = namespaced(), batches_of(2)
    trainer = Trainer(kafka, tmp_path / "two", write_model(tmp_path / "model"), pipeline_parallel=2)

    async def scenario() -> int | None:
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, batches[:1])
            async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
                with trainer.running() as process:
                    await until(events, step_is(1), process)
                    (second_rank,) = other_ranks(trainer)
                    os.kill(second_rank, signal.SIGSTOP)
                    await produce(bus, batches[1:], first=2)
                    await until(events, lambda r: isinstance(r, TrainerHeartbeat) and r.state == "training", process)
                    process.terminate()
                    os.kill(second_rank, signal.SIGCONT)
                    return await asyncio.to_thread(process.wait, DEADLINE_S)

    assert await scenario() == 0, trainer.log.read_text()
    assert "Error" not in trainer.log.read_text()
    assert [start_time(pid) for pid in other_ranks(trainer)] == [None], "no rank outlives the service"


async def test_an_adapter_of_two_ranks_is_published_as_its_checkpoint_has_it(tmp_path: Path) -> None:
    settings = TrainerSettings(
        model_path=str(write_model(tmp_path / "model")),
        lora_rank=2,
        lora_alpha=6.0,
        adapter_rank=4,
        tensor_parallel=2,
        learning_rate=1e-2,
        micro_batch_tokens=4096,
    )

    # Tests of one rank that ran before in this process may have left their groups.
    parallel.shut_down()

    def publish(followers: Followers) -> None:
        engine = MultiRankEngine(settings, followers)
        published = PublishedTensors(engine, Settings(trainer=settings))
        untrained = checksum_of(published.now())
        engine.train_step(batches_of(1)[0])
        kept = engine.save_checkpoint(tmp_path / "checkpoints", engine.progress).result()
        first = checksum_of(published.now())
        assert checksum_of(published.of_checkpoint(kept)) == first != untrained
        engine.train_step(batches_of(2)[1])
        assert checksum_of(published.now()) != first
        assert checksum_of(published.of_checkpoint(kept)) == first
        engine.leave()

    async with followers_of(settings.ranks, ChildRanks()) as followers:
        assert followers is not None
        await asyncio.to_thread(publish, followers)
