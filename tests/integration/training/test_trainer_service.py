"""The trainer as a process, on a real broker: killed anywhere it trains the same, and what it publishes arrives."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from benchmarks._records import synced
from schemas import (
    BatchLifecycleState,
    BatchRecord,
    ModelVersion,
    StepTrained,
    TrainerHeartbeat,
    VersionRefused,
    VersionWanted,
)
from schemas.topics import (
    BATCHES,
    COORDINATOR_EVENTS,
    EXPERIENCES,
    EXPLORER_EVENTS,
    MODEL_VERSIONS,
    TRAINER_EVENTS,
)
from tests.integration.training.trainers import (
    DEADLINE_S,
    Trainer,
    assert_same,
    batches_of,
    entry_of,
    produce,
    step_is,
    train_to_the_end,
    trained,
    until,
    until_logged,
)
from tests.support.fakes.announcements import announced as announced_version
from tests.support.fakes.experiences import make_group
from tests.support.fakes.tiny_trainer import write_model
from tests.support.faults.transfers import settled
from tests.support.mesh.mesh import make_topics, with_topics
from trinity_bus.bus import Bus, Producer, Reader
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.process import Process
from trinity_bus.telemetry import load_spans
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import source_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


async def test_killed_anywhere_it_trains_the_same(namespaced: Callable[[], KafkaSettings], tmp_path: Path) -> None:
    model, batches = write_model(tmp_path / "model"), batches_of(5)
    batches[4] = []  # all its tasks failed

    async def scenario(folder: Path, deaths: Sequence[tuple[str, int]]) -> list[StepTrained]:
        kafka = namespaced()
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, batches)
            trainer = Trainer(kafka, folder, model, total_steps=5)
            for point, step in deaths:
                await asyncio.to_thread(trainer.dies, point, step)
            return await train_to_the_end(bus, trainer, 5)

    undisturbed = await scenario(tmp_path / "undisturbed", [])
    assert [(step.step, step.version, step.publish) for step in undisturbed] == [(i, i, True) for i in range(6)]
    assert [step.batch_id for step in undisturbed] == [None, *(f"batch-{i}" for i in range(1, 6))]
    assert all("loss" in step.metrics for step in undisturbed[1:5])
    assert len({step.checksum for step in undisturbed[:5]}) == 5
    assert undisturbed[5].checksum == undisturbed[4].checksum

    disturbed = await scenario(
        tmp_path / "disturbed", [("trained", 1), ("half-written", 2), ("unnamed", 3), ("durable", 4)]
    )
    # One announcement at each of five starts (two of them of untrained weights), and the steps between.
    assert [step.step for step in disturbed] == [0, 0, 1, 1, 2, 2, 3, 4, 5]
    assert len({step.incarnation for step in disturbed}) == 5
    assert_same(disturbed, undisturbed)
    checkpoints = tmp_path / "disturbed" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        ".lock",
        ".run",
        *(f"step-0000000{i}" for i in (3, 4, 5)),
    ]
    assert disturbed[-1].checkpoint == str(checkpoints / "step-00000005")


@contextlib.asynccontextmanager
async def mesh(kafka: KafkaSettings, trainer: Trainer) -> AsyncIterator[tuple[Producer, Reader, Process]]:
    async with (
        Bus(kafka, client_id="test") as bus,
        bus.reader(TRAINER_EVENTS, start="beginning") as events,
        bus.producer() as producer,
    ):
        with trainer.running() as process:
            yield producer, events, process


@pytest.mark.parametrize("method", ["nccl", "memory", "checkpoint", "object"])
async def test_weights_are_served_and_wrong_bytes_are_noticed(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path, method: str
) -> None:
    kafka, steps = namespaced(), 2
    trainer = Trainer(
        kafka,
        tmp_path / "trainer",
        write_model(tmp_path / "model"),
        **{"trainer.total_steps": steps, "trainer.export_dir": tmp_path / "export", "synchronizer.sync_method": method},
        **{"synchronizer.object_url": f"file://{tmp_path}/objects"},
    )

    async def receive(announced: ModelVersion) -> str:
        receiver = WeightReceiver()
        receiver.start(source_of(announced, "explorer-0", object_url=f"file://{tmp_path}/objects"))
        progress = await asyncio.to_thread(settled, receiver, DEADLINE_S)
        receiver.close()
        assert progress.state == "ready", progress.error
        return progress.checksum

    await make_topics(kafka)
    async with mesh(kafka, trainer) as (producer, events, process):
        first = trained(await until(events, step_is(0), process))[0]
        announced = announced_version(
            0,
            "explorer-0",
            model=first.model,
            method=first.method,
            trainer=first.trainer,
            trainer_incarnation=first.incarnation,
            master_address=first.master_address,
            master_port=first.master_port,
            checksum=first.checksum,
            checkpoint=first.checkpoint,
            secret="5e" * 32,
        )
        assert first.method == {"nccl": "gloo"}.get(method, method)
        # A former incarnation's announcement is void; a transfer for it would be refused.
        void = announced.model_copy(update={"trainer_incarnation": "former"})
        for version in (void, announced):
            await (await producer.send(MODEL_VERSIONS, version.model, version))
        assert await receive(announced) == first.checksum
        answer = synced(announced, "explorer-0", "life")
        wrong = answer.model_copy(update={"checksum": "0" * 64})
        for one in (answer, wrong):
            await (await producer.send(EXPLORER_EVENTS, "explorer-0", one))
        async with Bus(kafka, client_id="more") as bus:
            await until_logged(trainer, "it must take it again", process)
            await produce(bus, batches_of(steps))
        steps_trained = trained(await until(events, step_is(steps), process))
        async with Bus(kafka, client_id="past") as bus, bus.reader(TRAINER_EVENTS, start="beginning") as reader:
            said = [item.record async for item in reader.replay()]
        told = [beat.settings for beat in said if isinstance(beat, TrainerHeartbeat)]
        assert "trainer.learning_rate" in told[0]
        assert not any(told[1:])
        assert [step.metrics["weights_mismatched"] for step in steps_trained] == [1.0] * steps
        beats = await until(
            events, lambda r: isinstance(r, TrainerHeartbeat) and (r.step, r.version) == (steps, steps), process
        )
        assert {beat.state for beat in beats if isinstance(beat, TrainerHeartbeat)} <= {"ready", "training", "done"}
        await until_logged(trainer, "the trained model is in", process)
        older = VersionWanted(model=first.model, version=1)
        await (await producer.send(COORDINATOR_EVENTS, first.model, older))
        again = trained(await until(events, lambda r: isinstance(r, StepTrained) and r.again, process))[-1]
        assert (again.version, again.checksum) == (1, steps_trained[0].checksum), "the bytes that it had"
        # Only where explorers read checkpoints is there one of the version before the first step.
        absent, kept = (7, [0, 1, 2]) if method == "checkpoint" else (0, [1, 2])
        gone = older.model_copy(update={"version": absent})
        await (await producer.send(COORDINATOR_EVENTS, first.model, gone))
        refused = (await until(events, lambda r: isinstance(r, VersionRefused), process))[-1]
        assert isinstance(refused, VersionRefused)
        assert (refused.version, refused.available) == (absent, kept)
        os.kill(process.pid, signal.SIGINT)
        # What a shell expects of Ctrl-C.
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 130
    assert (tmp_path / "export" / "model.safetensors").exists()
    spans = load_spans(tmp_path / "trainer" / "run")
    train_steps = [span for span in spans if span.name == "train step"]
    assert len(train_steps) == steps
    for span in train_steps:
        assert span.parent_id is None
        assert span.links == (("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),)
    published = [span for span in spans if span.name == "publish version"]
    assert [span.attributes["rl.model.version"] for span in published] == [0, 1, 2]
    assert [span.parent_id for span in published[1:]] == [span.span_id for span in train_steps]


async def test_a_manifest_that_cannot_be_kept_stops_the_trainer(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    kafka = namespaced()
    trainer = Trainer(kafka, tmp_path / "trainer", write_model(tmp_path / "model"))

    async def scenario() -> int | None:
        async with with_topics(kafka) as bus:
            good = make_group(task_id="task-1")
            async with bus.producer() as producer, bus.reader(TRAINER_EVENTS, start="end") as events:
                position = await (await producer.send(EXPERIENCES, "task-1", good))
                # The manifest was written for another attempt than the one that lies there.
                batch = BatchRecord(
                    batch_id="batch-1",
                    batch_type="train",
                    state=BatchLifecycleState.FINALIZED,
                    sequence=1,
                    expected_task_count=1,
                    manifest=[entry_of("task-1", 2, 4, position)],
                )
                await (await producer.send(BATCHES, "batch-1", batch))
                with trainer.running() as process:
                    await until(events, step_is(0), process)
                    return await asyncio.to_thread(process.wait, DEADLINE_S)

    assert await scenario() == 1
    assert (
        "has (task, attempt, samples) = ('task-1', 1, 4), the manifest says ('task-1', 2, 4)" in trainer.log.read_text()
    )
    assert not (tmp_path / "trainer" / "checkpoints" / "step-00000001").exists()
