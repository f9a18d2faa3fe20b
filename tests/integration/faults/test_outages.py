"""A broker that is killed and comes back, and topics that grow: nobody ends, and the log keeps its invariants."""

import time
from collections import Counter
from pathlib import Path

import pytest

from schemas.topic import Topic
from schemas.topics import EXPERIENCES, RESULTS, ROLLOUTS
from tests.support.faults.client import FaultClient, assert_no_traceback, at_work
from tests.support.faults.mesh import FaultMesh
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus, lane_partition
from trinity_bus.runtime.process import start_time

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

OUTAGES = 2
BETWEEN = 4
"""Batches that end before each outage."""
MORE = 5
"""Partitions."""
ANEW = "explorer-0"
"""Is killed once there are more lanes, and chooses another one."""


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


async def outages(client: FaultClient) -> None:
    for outage in range(OUTAGES):
        await client.until(client.ended + BETWEEN)
        await kill_broker(client.mesh)
        killed = time.monotonic()
        await client.until(client.ended + 2)
        print(f"outage {outage}: the next batches ended {time.monotonic() - killed:.1f} s after it")


def assert_sound(client: FaultClient, folder: Path) -> Counter[str]:
    """Nothing was lost, nothing counts twice. Return how often each service was started again."""
    client.log.check(max_staleness=1, max_inflight_batches=2)
    assert len(client.log.contents()) == client.sent
    assert_no_traceback(folder)
    again = Counter({name: service.incarnations - 1 for name, service in client.mesh.services.items()})
    print(client.sent, again)
    return +again


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


async def test_a_broker_that_is_killed_again_and_again_and_topics_that_grow_end_nobody(tmp_path: Path) -> None:
    lane = lane_partition(ANEW, ROLLOUTS.partitions + MORE)
    assert lane >= ROLLOUTS.partitions
    mesh = FaultMesh(tmp_path / "mesh")
    async with at_work(FaultClient, mesh) as client:
        await outages(client)
        for topic in (EXPERIENCES, RESULTS, ROLLOUTS):
            await client.bus.grow(topic, topic.partitions + MORE)
        mesh.services[ANEW].kill()
        while not await _has(client.bus, ROLLOUTS, lane):
            await client.until(client.ended + 1)
        while not await _used(client.bus):
            await client.until(client.ended + 1)
        # What lies there is trained on, and the trainer goes on from it.
        await client.until(client.ended + 4)
    assert assert_sound(client, tmp_path) == {ANEW: 1}
    assert {received.partition for received in client.log.experiences} & set(range(EXPERIENCES.partitions, 99))
    assert {received.key for received in client.log.rollouts if received.partition >= ROLLOUTS.partitions} == {ANEW}


@pytest.mark.nightly
async def test_of_two_coordinators_either_may_end_when_the_broker_does_and_nobody_else(tmp_path: Path) -> None:
    mesh = FaultMesh(tmp_path / "mesh", coordinators=2)
    async with at_work(FaultClient, mesh) as client:
        await outages(client)
    assert {name for name in assert_sound(client, tmp_path) if not name.startswith("coordinator")} == set()
