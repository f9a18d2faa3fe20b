"""Machines whose clocks are an hour ahead or behind: nobody is timed out by one, and nothing is dropped."""

import asyncio
import time
from pathlib import Path

import pytest

from schemas.topics import TASKS
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.waiting import until
from trinity_bus.client import Synchronizer
from trinity_bus.config import CoordinatorSettings, KafkaSettings, Settings
from trinity_bus.coordination.retention import RetentionSnapshot
from workers.coordinator.retention import Keeper
from workers.coordinator.service import Coordinator

pytestmark = pytest.mark.integration

HOUR_S = 3600.0


@pytest.fixture(params=[HOUR_S, -HOUR_S], ids=["ahead", "behind"])
def _off(request: pytest.FixtureRequest, kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day of this process is another one than that of the broker and of processes that it starts."""
    right, off_s = time.time, request.param
    monkeypatch.setattr(time, "time", lambda: right() + off_s)


@pytest.mark.usefixtures("_off")
async def test_explorers_trainers_producers_and_clients_whose_clocks_are_off_work_like_others(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer):
        with mesh.coordinator():
            async with FakeTrainer(bus).alive() as trainer, FakeExplorer(bus).alive():
                await send_tasks(producer, 8)
                await trainer.until_trained(2)
                async with Synchronizer(Settings(kafka=mesh.kafka), bus=bus) as client:
                    assert client.get_trainer_status() == "running"
                    assert client.get_explorer_status_counts() == {"running": 1}
                    await send_tasks(producer, 4, "later")
                    await client.wait_served(3, timeout_s=60)
            assert [batch.failed_task_count for batch in trainer.trained] == [0, 0, 0]
        async with Synchronizer(Settings(kafka=mesh.kafka), bus=bus) as client:
            # Now nobody says anything any more.
            await until(lambda: client.get_trainer_status() == "stopped")
            await until(lambda: client.get_explorer_status_counts() == {"stopped": 1})


@pytest.mark.usefixtures("_off")
async def test_a_coordinator_whose_clock_is_off_deletes_nothing_before_its_time(
    kafka: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, looks = Mesh(kafka, tmp_path), [0]
    look = Keeper._look

    async def counting(keeper: Keeper) -> RetentionSnapshot:
        looks[0] += 1
        return await look(keeper)

    monkeypatch.setattr(Keeper, "_look", counting)
    settings = CoordinatorSettings(batch_size=4, tick_s=0.05, retention_s=0.1, keep_s=HOUR_S / 2)

    async with (
        mesh.connected() as (bus, producer),
        FakeTrainer(bus).alive() as trainer,
        FakeExplorer(bus).alive(),
    ):
        working = asyncio.create_task(Coordinator(Settings(kafka=mesh.kafka, coordinator=settings), bus).run())
        await send_tasks(producer, 4)
        await trainer.until_trained(1)
        enough = looks[0] + 4
        await until(lambda: looks[0] >= enough)
        assert set((await bus.beginning_offsets(TASKS)).values()) == {0}
        working.cancel()
        await asyncio.wait([working])
