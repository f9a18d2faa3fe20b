"""Sync styles, the history of versions and going back to one, on a real broker with fake workers."""

import asyncio
import contextlib
import json
import subprocess
from typing import Any

import pytest

from schemas.topics import EXPLORER_EVENTS, MODEL_VERSIONS, VERSION_HISTORY
from tests.support.fakes.workers import WAIT_S, FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks, trinity_bus
from tests.support.mesh.waiting import until
from tests.support.sampled import at_night
from trinity_bus.client import Synchronizer
from trinity_bus.config import CoordinatorSettings, Settings, SynchronizerSettings
from trinity_bus.coordination import SyncPolicy
from trinity_bus.view import follow

pytestmark = pytest.mark.integration

BATCHES = 6


def settings(mesh: Mesh) -> Settings:
    return Settings(kafka=mesh.kafka)


@pytest.mark.parametrize(
    ("synchronizer", "max_staleness", "published", "needed"),
    [
        ({"sync_style": "fixed", "sync_interval": 2, "sync_offset": 1}, None, [0, 2, 4, 6], [0, 0, 0, 2, 2, 4]),
        ({"sync_style": "explorer_driven", "sync_interval": 2}, 1, None, [0, 0, 1, 2, 3, 4]),
        at_night({"sync_style": "trainer_driven", "sync_interval": 2}, 3, [0, 2, 4, 6], None),
        at_night({"sync_style": "fully_async"}, 2, [0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 3]),
    ],
    ids=["fixed", "explorer_driven", "trainer_driven", "fully_async"],
)
async def test_a_run_under_each_style(
    mesh: Mesh,
    synchronizer: dict[str, Any],
    max_staleness: int | None,
    published: list[int] | None,
    needed: list[int] | None,
) -> None:
    bound: dict[str, Any] = {} if max_staleness is None else {"max_staleness": max_staleness}
    policy = SyncPolicy.of(SynchronizerSettings(**synchronizer), CoordinatorSettings(**bound))

    async with mesh.connected() as (bus, producer):
        with mesh.coordinator(synchronizer, **bound):
            explorers = [FakeExplorer(bus, f"explorer-{i}", slots=3) for i in range(2)]
            async with contextlib.AsyncExitStack() as stack:
                for explorer in explorers:
                    await stack.enter_async_context(explorer.alive())
                trainer = await stack.enter_async_context(FakeTrainer(bus, policy).alive())
                await send_tasks(producer, 4 * BATCHES)
                await trainer.until_trained(BATCHES)
                await until(lambda: all(e.version == trainer.published[-1] for e in explorers))
    assert published in (None, trainer.published)
    assert needed in (None, [batch.min_version for batch in trainer.trained])
    for batch in trainer.trained:
        for entry in batch.manifest:
            assert batch.sequence - 1 - entry.version_min <= policy.staleness_bound
    if synchronizer["sync_style"] == "fixed":
        drawn = [{entry.version_max for entry in batch.manifest} for batch in trainer.trained]
        assert drawn == [{batch.min_version} for batch in trainer.trained]


def test_a_coordinator_whose_settings_starve_the_mesh_says_so_and_ends(mesh: Mesh) -> None:
    with mesh.coordinator({"sync_style": "fully_async", "sync_interval": 3}) as process:
        assert process.wait(60) != 0
    assert "set TRINITY_BUS_COORDINATOR__MAX_STALENESS to 2 or more" in mesh.log()


async def test_an_older_version_is_served_until_the_newest_is_asked_for(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer):
        with mesh.coordinator():
            explorer, trainer = FakeExplorer(bus), FakeTrainer(bus, kept=(2, 3))
            async with explorer.alive(), trainer.alive(), Synchronizer(settings(mesh), bus=bus) as synchronizer:
                await send_tasks(producer, 12)
                await trainer.until_trained(3)
                await until(lambda: explorer.version == 3)
                with pytest.raises(ValueError, match="version 1 cannot be had: its checkpoint is gone; there are"):
                    await synchronizer.publish_version(1)
                assert await synchronizer.publish_version(2) == ""
                assert await synchronizer.wait_served(2, timeout_s=WAIT_S) == ["explorer-0"]
                await until(lambda: any(row.pinned for row in synchronizer.versions()))
                await send_tasks(producer, 4, "later")
                cost = ""
                async with asyncio.timeout(WAIT_S):
                    # The next batch needs version 3: it waits, and asking again says so.
                    while not cost:
                        cost = await synchronizer.publish_version(2)
                        await asyncio.sleep(0.05)
                assert "train-000004" in cost
                assert await synchronizer.publish_version(None) == ""
                assert await synchronizer.wait_new_model_state_dict(2, timeout_s=WAIT_S) >= 3
                await trainer.until_trained(4)
                await until(lambda: synchronizer.model_version == 4)
                assert synchronizer.get_trainer_status() == "running"
                assert sum(synchronizer.get_explorer_status_counts().values()) == 1
                rows = synchronizer.versions()
        assert [row.record.version for row in rows][:4] == [0, 1, 2, 3]
        assert rows[3].record.metrics == {"loss": 0.5, "reward_mean": 1.0}
        assert rows[3].record.checkpoint == "/checkpoints/step-00000003"


@pytest.mark.timeout(300)
async def test_the_command_lists_versions_and_who_serves_them(mesh: Mesh) -> None:
    async def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(trinity_bus, mesh.kafka, "versions", *arguments)

    async with mesh.connected() as (bus, producer):
        with mesh.coordinator():
            explorer, trainer = FakeExplorer(bus), FakeTrainer(bus, kept=(1,))
            async with explorer.alive(), trainer.alive():
                await send_tasks(producer, 8)
                await trainer.until_trained(2)
                # On the log: the explorer knows it a moment before.
                async with follow(bus, topics=(MODEL_VERSIONS, VERSION_HISTORY, EXPLORER_EVENTS)) as view:
                    await until(lambda: view.state.serving(2) == ["explorer-0"] and len(view.state.history) == 3)
                listed = await call("--json")
                rows = [json.loads(line) for line in listed.stdout.splitlines()]
                assert [row["version"] for row in rows] == [0, 1, 2], listed.stderr
                assert [row["served_by"] for row in rows] == [[], [], ["explorer-0"]]
                gone = await call("publish", "0")
                assert (gone.returncode, "there are 1" in gone.stderr) == (1, True)
                back = await call("publish", "1")
                assert (back.returncode, "Version 1 is served by explorer-0." in back.stderr) == (0, True)
