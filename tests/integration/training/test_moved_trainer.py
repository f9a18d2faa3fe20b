"""A trainer whose machine is lost, or only paused: another one goes on from what is at ``trainer.checkpoint_url``."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.training.trainers import (
    DEADLINE_S,
    Trainer,
    assert_same,
    batches_of,
    produce,
    train_to_the_end,
    until_logged,
)
from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint.mirror import CheckpointsThere

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


async def test_a_trainer_on_another_machine_goes_on_as_if_nothing_had_happened_and_a_paused_one_ends(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    model, url, batches = write_model(tmp_path / "model"), f"file://{tmp_path}/there", batches_of(4)
    apart = namespaced()
    async with Bus(apart, client_id="test") as bus:
        await produce(bus, batches)
        undisturbed = await train_to_the_end(bus, Trainer(apart, tmp_path / "apart", model, total_steps=4), 4)

    kafka, settings = namespaced(), {"total_steps": 4, "checkpoint_url": url}
    paused = Trainer(kafka, tmp_path / "paused", model, **settings)
    moved = Trainer(kafka, tmp_path / "moved", model, **settings)
    async with Bus(kafka, client_id="test") as bus:
        await produce(bus, batches[:2])
        with paused.running() as process:
            await until_logged(paused, f"step-00000002 is at {url}", process)
            os.kill(process.pid, signal.SIGSTOP)
            try:
                await produce(bus, batches[2:], first=3)
                told = await train_to_the_end(bus, moved, 4)
            finally:
                os.kill(process.pid, signal.SIGCONT)
            assert await asyncio.to_thread(process.wait, DEADLINE_S) not in (None, 0)
        assert "another trainer has begun with" in paused.log.read_text()
    assert_same(told, undisturbed)
    assert "fetching the checkpoint of step 2" in moved.log.read_text()
    # Steps 2 and 4 were waited for. Steps 1 and 3 may have been passed over while another was sent, and three are kept.
    found = CheckpointsThere(url).listed(verified=True)
    assert [one.step for one in found] in ([2, 3, 4], [1, 2, 4], [2, 4])
    assert not any(one.problem for one in found)
    assert checkpoint.read_run(moved.folder / "checkpoints") == checkpoint.read_run(paused.folder / "checkpoints")
