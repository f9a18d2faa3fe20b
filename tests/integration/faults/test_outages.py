"""A broker that is killed and comes back: every service waits for it, none ends, and the log keeps its invariants."""

import time
from pathlib import Path

import pytest

from tests.support.faults.client import FaultClient, assert_no_traceback, at_work
from tests.support.faults.mesh import FaultMesh
from tests.support.mesh.waiting import until
from trinity_bus.runtime.process import start_time

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

OUTAGES = 2
BETWEEN = 4
"""Batches that end before each outage."""


async def kill_broker(mesh: FaultMesh) -> None:
    """Kills it, or of three the next one, and waits until it is gone."""
    pid = None

    def is_killed() -> bool:
        nonlocal pid
        pid = mesh.broker.pid
        return mesh.kill_broker()

    # Of three, the others have batches end while the one that was killed before still starts.
    await until(is_killed)
    killed = pid
    assert killed is not None
    await until(lambda: start_time(killed) is None)


@pytest.mark.parametrize("coordinators", [1, 2])
async def test_a_broker_that_is_killed_again_and_again_ends_nobody_and_loses_nothing(
    tmp_path: Path, coordinators: int
) -> None:
    mesh = FaultMesh(tmp_path / "mesh", coordinators=coordinators)
    async with at_work(FaultClient, mesh) as client:
        for outage in range(OUTAGES):
            await client.until(client.ended + BETWEEN)
            await kill_broker(mesh)
            killed = time.monotonic()
            await client.until(client.ended + 2)
            print(f"outage {outage}: the next batches ended {time.monotonic() - killed:.1f} s after it")
    incarnations = {service.name: service.incarnations for service in mesh.services.values()}
    print(client.sent, incarnations)
    client.log.check(max_staleness=1, max_inflight_batches=2)
    assert len(client.log.contents()) == client.sent
    assert {name: count for name, count in incarnations.items() if not name.startswith("coordinator")} == {
        "explorer-0": 1,
        "explorer-1": 1,
        "trainer": 1,
    }
    if coordinators == 1:
        assert incarnations["coordinator-0"] == 1
    assert_no_traceback(tmp_path)
