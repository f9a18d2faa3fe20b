"""Learning from examples on a real broker: no coordinator, no explorer, and killed anywhere the same is learned."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from schemas import Demonstration, Preference, StepBegun, StepEnded, StepTrained
from schemas.topic import Topic
from schemas.topics import DEMONSTRATIONS, PREFERENCES, STEPS, TRAINER_DEAD_LETTERS
from tests.integration.training.trainers import (
    DEADLINE_S,
    Trainer,
    batches_of,
    begun,
    produce,
    train_to_the_end,
)
from tests.support.chat.models import tokenizer_of
from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.bus import Bus
from trinity_bus.client import send_all
from trinity_bus.config import KafkaSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SHOWN = [
    *(Demonstration(example_id=f"d-{i}", prompt=f"{i} + 1 =", response=f"{i + 1}") for i in range(10)),
    Demonstration(example_id="long", prompt="?", response="42 " * 200),
]
PREFERRED = [Preference(example_id=f"p-{i}", prompt=f"{i} + 1 =", chosen=f"{i + 1}", rejected="no") for i in range(7)]
SFT = {"stage": "sft", "loss": "sft", "total_steps": 4, "examples": len(SHOWN)}
DPO = {"stage": "dpo", "loss": "dpo", "total_steps": 2, "examples": len(PREFERRED)}
MIXED = {"stage": "rl", "strategy": "mix", "total_steps": 3, "mix_coef": 0.5, "examples": len(SHOWN)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("examples") / "model", vocabulary=600)
    tokenizer_of("qwen3").save_pretrained(folder)
    return folder


async def send(bus: Bus) -> None:
    await bus.ensure_topics()
    async with bus.producer() as producer:
        await (await producer.send_raw(DEMONSTRATIONS, "broken", b'{"example_id": "broken"}'))
        for topic, examples in ((DEMONSTRATIONS, SHOWN), (PREFERENCES, PREFERRED)):
            await send_all(producer, topic, ((one.example_id, one, None) for one in examples))


async def ended(bus: Bus) -> list[tuple[str, int]]:
    """Return stage and step of those whose figures are on `steps`: of others the trainer's events have them."""
    async with bus.reader(STEPS, start="beginning") as steps:
        found = [received.record async for received in steps.replay() if isinstance(received.record, StepEnded)]
    assert all(record.metrics["loss"] > 0.0 and record.follows is None for record in found)
    return [(record.trainer.removeprefix("trainer-0/"), record.step) for record in found]


async def count(bus: Bus, topic: Topic) -> int:
    async with bus.reader(topic, start="beginning", expect=()) as reader:
        return len([received async for received in reader.replay()])


def weights(folder: Path, stage: str, step: int) -> dict[str, bytes]:
    path = folder / "checkpoints" / stage / f"step-{step:08d}" / "model.safetensors"
    return {name: array.tobytes() for name, array in load_file(path).items()}


async def test_stages_killed_anywhere_end_in_the_same_weights(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path, model: Path
) -> None:
    """SFT, then DPO, then GRPO with demonstrations mixed in; until the last there are no batches and no explorers."""

    async def scenario(folder: Path, deaths: Sequence[tuple[str, int]]) -> tuple[list[StepTrained], list[StepBegun]]:
        kafka = namespaced()
        async with Bus(kafka, client_id="test") as bus:
            await send(bus)
            await produce(bus, batches_of(3))
            stages = json.dumps([SFT, DPO, MIXED])
            trainer = Trainer(kafka, folder, model, mini_batches=2, examples_per_step=4, engine="torch", stages=stages)
            for point, step in deaths:
                await asyncio.to_thread(trainer.dies, point, step)
                await send(bus)  # what is written later is not for this run
            said = await train_to_the_end(bus, trainer, 3)
            if not deaths:
                assert await count(bus, TRAINER_DEAD_LETTERS) == 2, "one in each stage that has met it"
                assert await ended(bus) == [("sft", step) for step in (1, 2, 3, 4)] + [("dpo", step) for step in (1, 2)]
            return said, await begun(bus)

    undisturbed, written = await scenario(tmp_path / "undisturbed", [])
    # Within the first, the second and the third of them.
    disturbed, again = await scenario(tmp_path / "disturbed", [("half-written", 4), ("trained", 2), ("begun", 3)])
    assert [(record.batch_id, record.step) for record in written] == [
        *((f"demonstrations-{step}", step) for step in (1, 2, 3, 4)),
        *((f"preferences-{step}", step) for step in (1, 2)),
        *((f"batch-{step}", step) for step in (1, 2, 3)),
    ]
    for one, other in zip(written, again, strict=True):
        assert (one.demonstrations, one.preferences) == (other.demonstrations, other.preferences)
        assert (one.left_out, one.examples) == (other.left_out, other.examples)
    assert all(len(record.demonstrations) == 4 and record.groups for record in written[-3:])
    assert any(one.reason == "example_too_long" for record in written for one in record.left_out)
    expected = {step.step: step.checksum for step in undisturbed}
    assert list(expected) == [0, 1, 2, 3], "steps of examples alone are told to nobody"
    assert {step.step: step.checksum for step in disturbed} == expected
    assert len(set(expected.values())) == 4
    for stage, step in (("sft", 4), ("dpo", 2), ("rl", 3)):
        assert weights(tmp_path / "undisturbed", stage, step) == weights(tmp_path / "disturbed", stage, step)
    assert "its 4 steps are trained" in (tmp_path / "disturbed" / "trainer.log").read_text()


async def test_a_trainer_of_demonstrations_waits_for_as_many_as_it_wants(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path, model: Path
) -> None:
    kafka = namespaced()
    trainer = Trainer(kafka, tmp_path / "trainer", model, loss="sft", engine="torch", total_steps=1, examples=11)
    async with Bus(kafka, client_id="test") as bus:
        with trainer.running() as process:
            while "11 are wanted" not in (trainer.log.read_text() if trainer.log.exists() else ""):
                assert process.poll() is None, trainer.log.read_text()
                await asyncio.sleep(0.05)
            await send(bus)
            assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0, trainer.log.read_text()
        (record,) = await begun(bus)
    assert record.examples == 11
    assert len(record.demonstrations) == 32
