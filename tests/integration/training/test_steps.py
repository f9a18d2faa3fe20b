"""What the trainer says on ``steps``, on a real broker: before the step, once, and a step that is taken again obeys."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas import ExperienceGroup, StepBegun, StepTrained
from tests.integration.training.trainers import (
    DEADLINE_S,
    Trainer,
    assert_same,
    batches_of,
    begun,
    drawn,
    produce,
    train_to_the_end,
)
from tests.support.fakes.experiences import make_group
from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.training import checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


ONCE_MORE = {"strategy": "priority", "replay_groups": 2, "replay_steps": 2, "replay_decay": 0.5}
SAID = "step 1 is taken as its record says, not as the settings would have it now: seed 0, now 5; leaves out 1, now 0"


def model_folders(trainer: Path) -> dict[int, bool]:
    """Which checkpoints there are, and whether each is a model with all that belongs to it."""
    found = trainer / "checkpoints"
    return {
        step: (checkpoint.folder_of(found, step) / "config.json").is_file() for step in sorted(checkpoint.steps(found))
    }


def batches() -> list[list[ExperienceGroup]]:
    found = batches_of(4)
    found[0].append(drawn(make_group(seed=901, task_id="limited-0"), top_p=0.5))
    found[1].append(drawn(make_group(seed=902, task_id="limited-1", version=1), top_p=0.5))
    return found


async def test_a_step_that_is_taken_again_takes_what_was_written_of_it(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model")

    async def scenario(folder: Path, *, killed: bool) -> tuple[list[StepTrained], list[StepBegun]]:
        kafka = namespaced()
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, batches())
            trainer = Trainer(kafka, folder, model, total_steps=4, **ONCE_MORE)
            if killed:
                # Whoever starts it again has changed his mind about top-p, and what was begun stays as it was begun.
                await asyncio.to_thread(trainer.dies, "begun", 1)
                trainer = Trainer(kafka, folder, model, total_steps=4, limited_sampling="train", seed=5, **ONCE_MORE)
                await asyncio.to_thread(trainer.dies, "trained", 1)
                await asyncio.to_thread(trainer.dies, "begun", 1)
                assert trainer.log.read_text().count(SAID) == 2
                trainer = Trainer(kafka, folder, model, total_steps=4, **ONCE_MORE)
                await asyncio.to_thread(trainer.dies, "durable", 2)
                await asyncio.to_thread(trainer.dies, "begun", 4)
            said = await train_to_the_end(bus, trainer, 4)
            return said, await begun(bus)

    undisturbed, written = await scenario(tmp_path / "undisturbed", killed=False)
    assert [record.step for record in written] == [1, 2, 3, 4]
    assert [record.batch_id for record in written] == [f"batch-{i}" for i in range(1, 5)]
    assert len({(record.run, record.incarnation) for record in written}) == 1
    first = written[0]
    assert [group.task_id for group in first.groups] == ["task-0-a", "task-0-equal", "task-0-b", "limited-0"]
    assert all(part.position is not None for group in first.groups for part in group.parts)
    assert [(one.task_id, one.reason, one.samples) for one in first.left_out] == [
        ("limited-0", "limited_sampling", [0])
    ]
    # Groups whose rewards are equal teach nothing, once more as little as before.
    once_more = [[group.task_id for group in record.replayed] for record in written]
    assert [len(tasks) for tasks in once_more] == [0, 2, 2, 2]
    assert not any("equal" in task for tasks in once_more for task in tasks)
    assert [step.metrics.get("groups_replayed") for step in undisturbed if step.batch_id] == [None, 2, 2, 2]
    assert undisturbed[1].metrics["samples_left_out/limited_sampling"] == 1

    disturbed, again = await scenario(tmp_path / "disturbed", killed=True)
    assert [record.step for record in again] == [1, 2, 3, 4], "each is written once"
    assert [record.left_out for record in again] == [record.left_out for record in written]
    assert [[g.task_id for g in record.replayed] for record in again] == once_more
    assert len({record.run for record in again}) == 1
    assert len({record.incarnation for record in again}) > 1
    assert_same(disturbed, undisturbed)


async def test_groups_wait_until_enough_of_them_teach_something(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    kafka = namespaced()
    model = write_model(tmp_path / "model")
    settings = {"engine": "torch", "strategy": "dynamic_sampling", "effective_groups": 4, "total_steps": 4}
    trainer = Trainer(kafka, tmp_path / "trainer", model, save_as_hf="last", **settings)
    async with Bus(kafka, client_id="test") as bus:
        await produce(bus, batches_of(4))
        await asyncio.to_thread(trainer.dies, "begun", 2)
        said = {step.step: step for step in await train_to_the_end(bus, trainer, 4) if step.batch_id}
        written = await begun(bus)
    # Of three groups two teach something: two batches together are enough. Nothing is lost by being killed in between.
    waits = [{one.task_id for one in record.left_out if one.reason == "waiting"} for record in written]
    tasks = [{group.task_id for group in record.groups} for record in written]
    assert waits == [tasks[0], set(), tasks[2], set()]
    once_more = [{group.task_id for group in record.replayed} for record in written]
    assert once_more == [set(), tasks[0], set(), tasks[2]]
    assert [said[step].metrics["groups"] for step in (2, 3, 4)] == [6, 0, 6]
    assert said[2].checksum == said[3].checksum != said[4].checksum
    assert model_folders(tmp_path / "trainer") == {2: False, 3: False, 4: True}


async def test_updates_that_are_not_finite_again_and_again_end_the_trainer_with_its_state_saved(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    kafka = namespaced()
    # At such a rate the first update leaves nothing that a finite gradient could come from.
    settings = {"learning_rate": 1e30, "mini_batches": 1, "max_skipped_updates": 2, "checkpoint_interval": 100}
    trainer = Trainer(kafka, tmp_path / "trainer", write_model(tmp_path / "model"), save_as_hf="never", **settings)
    async with Bus(kafka, client_id="test") as bus:
        await produce(bus, batches_of(4))
        with trainer.running() as process:
            assert await asyncio.to_thread(process.wait, DEADLINE_S) == 1
        assert len(await begun(bus)) == 3
    log = trainer.log.read_text()
    assert "step 2: the gradient norm of an update is nan" in log
    assert "2 updates in a row, the last in step 3, were skipped because their loss or gradients were not finite" in log
    assert model_folders(tmp_path / "trainer") == {1: False, 2: False, 3: False}
