"""Attack 5: samples that are well formed, and that no model can be trained on.

Before: explorer and coordinator took them, and each start of the trainer ended at them. Now the explorer refuses them as
failed attempts with a reason; the trainer leaves out what reaches it all the same; and what it cannot train on at all is
passed over when an operator says so, the same after any crash.
"""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from schemas import BatchSkipped, ExperienceGroup, RolloutFinished, StepTrained, Task
from schemas.topics import BATCHES, EXPERIENCES
from tests.integration.explorer.test_explorer import Mesh, dispatch, nursery, run, settings
from tests.integration.training.trainers import (
    Trainer,
    batches_of,
    produce,
    train_to_the_end,
)
from tests.support.experiences import make_group
from tests.support.fake_engine import FakeEngine
from tests.support.rogue_workflows import POISON
from tests.support.training import write_model
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from workers.explorer.runners.nursery import Nursery

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

__all__ = ["nursery", "settings"]

REASONS = {
    "infinite reward": "reward inf is beyond 1e+09",
    "reward beyond a float32": "reward inf is beyond 1e+09",
    "empty prompt": "it has no prompt",
    "token beyond the vocabulary": "token id 1114112 is not one of",
    "negative token": "token id -1 is not one of",
    "nan logprob": "nan is no log-probability",
    "infinite logprob": "inf is no log-probability",
    "positive logprob": "0.5 is no log-probability",
}


def test_an_explorer_refuses_them_and_goes_on(settings: Settings, nursery: Nursery) -> None:
    assert set(REASONS) == set(POISON)

    async def body(mesh: Mesh, engine: FakeEngine, explorer: object) -> None:
        life = await mesh.joined()
        for kind, reason in REASONS.items():
            task_id = kind.replace(" ", "-")
            await mesh.send(dispatch(life, task_id, task=Task(task_id=task_id, workflow="poison", prompt=kind)))
            ended = await mesh.event(RolloutFinished, lambda event, wanted=task_id: event.task_id == wanted)
            assert (ended.status, ended.experience) == ("failed", None)
            assert ended.error is not None
            assert ended.error.startswith("UntrainableSampleError: run 1: ")
            assert reason in ended.error
        await mesh.send(dispatch(life, "good"))
        good = await mesh.event(RolloutFinished, lambda event: event.task_id == "good")
        assert (good.status, good.incarnation) == ("completed", life)
        assert [group.task_id for group in await mesh.experiences()] == ["good"]

    run(settings, nursery, body)


def changed(group: ExperienceGroup, **columns: np.ndarray) -> ExperienceGroup:
    return msgspec.structs.replace(group, **columns)


def poisoned(step: int) -> list[ExperienceGroup]:
    """Groups with one flawed sample each, and one without a single sample that could be trained on."""
    made = [make_group(seed=1000 * step + i, task_id=f"poison-{step}-{i}", version=step) for i in range(5)]
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    return [
        changed(made[0], rewards=np.array([inf, 1.0, 0.5, 0.0], np.float32)),
        changed(made[1], tokens=np.where(np.arange(len(made[1].tokens)) == 0, 32, made[1].tokens).astype(np.int32)),
        changed(made[2], tokens=np.where(np.arange(len(made[2].tokens)) == 0, -1, made[2].tokens).astype(np.int32)),
        changed(made[3], logprobs=np.where(np.arange(len(made[3].logprobs)) == 0, nan, made[3].logprobs)),
        changed(made[4], logprobs=made[4].logprobs + np.float32(9)),
    ]


@pytest.fixture
def namespaced(kafka: KafkaSettings) -> Callable[[], KafkaSettings]:
    return lambda: kafka.model_copy(update={"namespace": f"poison-{uuid.uuid4().hex[:8]}"})


def test_a_trainer_leaves_out_what_reaches_it_all_the_same(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    """What a forged record, or an older explorer, brings."""
    kafka = namespaced()
    batches = [batches_of(1)[0] + poisoned(0), [poisoned(1)[4]], batches_of(3)[2]]

    async def scenario() -> list[StepTrained]:
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, batches)
            trainer = Trainer(kafka, tmp_path / "trainer", write_model(tmp_path / "model"), total_steps=3)
            said = await train_to_the_end(bus, trainer, 3)
            assert "leaves out 8 samples: task poison-0-0, attempt 1, sample 0: reward inf" in trainer.log.read_text()
            return said

    start, first, nothing, third = asyncio.run(scenario())
    assert first.metrics["samples_left_out"] == 8
    assert first.metrics["samples_left_out/bad_reward"] == 1
    assert first.metrics["samples_left_out/bad_token"] == 2
    assert first.metrics["samples_left_out/bad_logprob"] == 5
    assert first.metrics["samples_trained"] >= 8
    assert np.isfinite([value for step in (first, nothing, third) for value in step.metrics.values()]).all()
    assert len({start.checksum, first.checksum, third.checksum}) == 3
    # Where nothing is left, the step changes nothing.
    assert (nothing.metrics["samples_left_out"], nothing.metrics["samples_trained"]) == (4, 0)
    assert nothing.checksum == first.checksum


async def skip(bus: Bus, sequence: int) -> None:
    """As the coordinator writes it."""
    record = BatchSkipped(batch_id=f"batch-{sequence}", sequence=sequence, reason="poison", client="operator")
    async with bus.producer() as producer:
        await (await producer.send(BATCHES, f"skip {record.batch_id}", record))


async def lose_experiences_of(bus: Bus, kafka: KafkaSettings, batches: list[list[ExperienceGroup]], bad: int) -> None:
    """Writes the batches; what the manifest of one says of its experiences is not so: nobody can train on it."""
    wrong = [list(groups) for groups in batches]
    await produce(bus, wrong[: bad - 1])
    lied = [changed(wrong[bad - 1][0], task_id="another-task"), *wrong[bad - 1][1:]]
    await _produce_lying(bus, lied, wrong[bad - 1], bad)
    await produce(bus, wrong[bad:], first=bad + 1)


async def _produce_lying(bus: Bus, lied: list[ExperienceGroup], named: list[ExperienceGroup], sequence: int) -> None:
    from schemas import BatchLifecycleState, BatchRecord
    from tests.integration.training.trainers import entry_of

    async with bus.producer() as producer:
        positions = [await (await producer.send(EXPERIENCES, group.task_id, group)) for group in lied]
        manifest = [
            entry_of(group.task_id, group.attempt, len(group), position)
            for group, position in zip(named, positions, strict=True)
        ]
        batch = BatchRecord(
            batch_id=f"batch-{sequence}",
            batch_type="train",
            state=BatchLifecycleState.FINALIZED,
            sequence=sequence,
            expected_task_count=len(manifest),
            manifest=manifest,
        )
        await (await producer.send(BATCHES, batch.batch_id, batch))
