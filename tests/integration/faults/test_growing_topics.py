"""Topics that grow below a mesh at work: nothing is lost, nothing counts twice, and no service ends."""

import asyncio
from pathlib import Path

import pytest

from schemas.topic import Topic
from schemas.topics import EXPERIENCES, RESULTS, ROLLOUTS
from tests.support.faults.client import FaultClient, assert_no_traceback, at_work
from tests.support.faults.mesh import FaultMesh
from trinity_bus.bus import Bus, lane_partition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MORE = 4
"""Partitions."""
LIMIT_S = 400.0
ANEW = "explorer-0"
"""Is killed once there are more lanes, and chooses another one."""


async def _has(bus: Bus, topic: Topic, partition: int) -> bool:
    """Whether something lies in this partition. Each broker hears of it in its own time."""
    return (await bus.end_offsets(topic)).get(partition, 0) > 0


async def _used(bus: Bus) -> bool:
    """Whether something lies in one of the new partitions of each topic."""
    for topic in (EXPERIENCES, RESULTS):
        ends = await bus.end_offsets(topic)
        if not any(end for partition, end in ends.items() if partition >= topic.partitions):
            return False
    return True


async def test_topics_that_grow_below_a_mesh_lose_nothing_and_end_nobody(tmp_path: Path) -> None:
    lane = lane_partition(ANEW, ROLLOUTS.partitions + MORE)
    assert lane >= ROLLOUTS.partitions
    mesh = FaultMesh(tmp_path / "mesh")
    async with at_work(FaultClient, mesh) as client, asyncio.timeout(LIMIT_S):
        await client.until(2)
        for topic in (EXPERIENCES, RESULTS, ROLLOUTS):
            await client.bus.grow(topic, topic.partitions + MORE)
        grown = client.ended
        mesh.services[ANEW].kill()
        while not await _has(client.bus, ROLLOUTS, lane):
            await client.until(client.ended + 1)
        while not await _used(client.bus):
            await client.until(client.ended + 1)
        used = client.ended
        # What lies there is trained on, and the trainer goes on from it.
        await client.until(used + 4)
    log = client.log
    print(f"{grown} batches had ended when they grew, {used} when all of it was in use, {client.sent} in all")
    log.check(max_staleness=1, max_inflight_batches=2)
    assert len(log.contents()) == client.sent
    assert {received.partition for received in log.experiences} & set(range(EXPERIENCES.partitions, 99))
    assert {name: service.incarnations for name, service in mesh.services.items() if service.incarnations > 1} == {
        ANEW: 2
    }
    assert {received.key for received in log.rollouts if received.partition >= ROLLOUTS.partitions} == {ANEW}
    assert_no_traceback(tmp_path)
