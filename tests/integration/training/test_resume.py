"""A trainer that goes on with other settings says so, on a real broker; what cannot be right ends it in a line."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.training.trainers import DEADLINE_S, Trainer, batches_of, produce, train_to_the_end
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.mesh import unused
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


async def test_settings_that_are_others_on_resume_are_said_in_a_line_each(kafka: KafkaSettings, tmp_path: Path) -> None:
    ours = unused(kafka)
    model, folder = write_model(tmp_path / "model"), tmp_path / "trainer"
    async with Bus(ours, client_id="test") as bus:
        await produce(bus, batches_of(4))
        await asyncio.to_thread(Trainer(ours, folder, model).dies, "durable", 2)
        with Trainer(ours, folder, model, engine="torch").running() as process:
            assert await asyncio.to_thread(process.wait, DEADLINE_S) == 1
        changed = Trainer(
            ours, folder, model, total_steps=4, learning_rate=0.02, clip_high=0.3, **{"mesh.max_tokens": 128}
        )
        said = await train_to_the_end(bus, changed, 4)
    assert said[-1].metrics["learning_rate"] == 0.02
    log = changed.log.read_text()
    assert "step-00000002 was written with engine=megatron, here torch: start with the same" in log
    assert [line.split("settings changed ")[1] for line in log.splitlines() if "settings changed" in line] == [
        "after step 2: mesh.max_tokens: 256 -> 128",
        "after step 2: trainer.learning_rate: 0.01 -> 0.02",
        "after step 2: trainer.clip_high: 0.28 -> 0.3",
    ]
