"""Three brokers of which one after the other is killed, silent, restarted and full, below one mesh that goes on.

All of it happens to one cluster and one mesh, in series; at last two of three are silent, and all wait. At the end
every invariant is read off the log, as after SIGKILLs of services (``test_sigkills.py``); no service may have ended.
With ``TEST_BROKER=three`` the silent broker is so for longer than ``kafka.outage_s``, with the time limits that users
have; else until more batches have ended; ``TEST_AWAY_S`` says for how long otherwise.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import ClientSession

from schemas.topics import TASKS
from tests.support.faults.client import TASKS_IN_BATCH, FaultClient, assert_no_traceback, at_work
from tests.support.faults.mesh import FaultMesh
from tests.support.mesh.broker_choice import is_three
from tests.support.mesh.broker_cluster import BrokerCluster, broker_cluster
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import until
from tests.support.sampled import at_night
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

GROUP_SIZE = 2
LIMIT_S = 120.0
MORE = 2
"""Batches that must end during a fault, and again after it."""
AS_USERS_HAVE_IT = KafkaSettings()
REQUEST_S = AS_USERS_HAVE_IT.request_timeout_s if is_three() else 2.0
"""How long a request to a silent broker takes to fail."""
AWAY_S = float(os.environ.get("TEST_AWAY_S", 1.5 * AS_USERS_HAVE_IT.outage_s if is_three() else 0.0))
"""For how long one broker says nothing at least: ``TEST_AWAY_S=600`` tries ten minutes."""
TIMES = {
    "TRINITY_BUS_KAFKA__REQUEST_TIMEOUT_S": str(REQUEST_S),
    "TRINITY_BUS_KAFKA__OUTAGE_S": str(AS_USERS_HAVE_IT.outage_s),
}


class Disturbance:
    """What happens to the brokers of a mesh, and how long it held the mesh up."""

    def __init__(self, cluster: BrokerCluster, mesh: FaultMesh, client: FaultClient, health_port: int) -> None:
        self._cluster = cluster
        self._mesh = mesh
        self._client = client
        self._health_port = health_port

    async def kill_leaders(self) -> None:
        """The leader of the coordinator's transactions, amid one that is open; of three also that of tasks."""
        namespace = self._mesh.kafka.namespace
        async with one_transaction(self._mesh.kafka, "amid") as send:
            await send(20)
            victim = await self._cluster.transaction_leader(f"{namespace}.coordinator")
            async with self._during(f"leader of transactions, broker {victim}, killed"):
                self._cluster.kill(victim)
                await send(20)
        await self._back()
        if not is_three():
            # It was as well the leader of a third of all partitions.
            return
        leader = await self._cluster.leader(TASKS.full_name(namespace), 0)
        async with self._during(f"leader of tasks, broker {leader}, killed"):
            self._cluster.kill(leader)
        await self._back()

    async def silence(self) -> None:
        """The leader of the coordinator's transactions says nothing for long, and then goes on where it was."""
        victim = await self._cluster.transaction_leader(f"{self._mesh.kafka.namespace}.coordinator")
        began, before = time.monotonic(), self._client.ended
        async with self._during(f"broker {victim} silent"):
            self._cluster.pause(victim)
        # That nothing ends of it however long it lasts can only be seen by waiting for so long.
        while time.monotonic() - began < AWAY_S:
            self._mesh.check()
            await asyncio.sleep(1.0)
        away_s = time.monotonic() - began
        print(f"broker {victim} silent for {away_s:.0f} s: {self._client.ended - before} more batches")
        self._cluster.resume(victim)
        await self._cluster.until_whole()

    async def restart_all(self) -> None:
        """Each hands over, ends and comes back; the next follows when all copies are up to date."""
        for node in self._cluster.nodes:
            async with self._during(f"broker {node} restarted", 0):
                await asyncio.to_thread(self._cluster.end, node)
            await self._back()

    async def leave_one(self) -> None:
        """Of three brokers one can be reached: whoever writes waits, says so and is not ready, and then goes on."""
        kept = await self._cluster.leader(TASKS.full_name(self._mesh.kafka.namespace), 0)
        others = [node for node in self._cluster.nodes if node != kept]
        await self._until_readiness("ready")
        async with self._during(f"brokers {others} silent"):
            for node in others:
                self._cluster.pause(node)
            print(f"meanwhile not ready: {await self._until_readiness('min.insync.replicas')}")
            for node in others:
                self._cluster.resume(node)
        await self._until_readiness("ready")
        await self._cluster.until_whole()

    async def fill_disk(self) -> None:
        """No byte more can be written by a leader of tasks."""
        victim = await self._cluster.leader(TASKS.full_name(self._mesh.kafka.namespace), 1)
        async with self._during(f"disk of broker {victim} full"):
            self._cluster.fill(victim)
            await until(lambda: self._cluster.poll() is not None)
        await self._back()

    @contextlib.asynccontextmanager
    async def _during(self, what: str, more: int = MORE) -> AsyncIterator[None]:
        """The block, and until more batches have ended since it began."""
        began, before = time.monotonic(), self._client.ended
        yield
        await self._client.until(before + more)
        print(f"{what}: {more} more batches {time.monotonic() - began:.1f} s after it")

    async def _readiness(self) -> str:
        """What the coordinator answers."""
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{self._health_port}/readyz") as answer:
            return (await answer.text()).strip()

    async def _until_readiness(self, wanted: str) -> str:
        async with asyncio.timeout(LIMIT_S):
            while wanted not in (answer := await self._readiness()):  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.2)
            return answer

    async def _back(self) -> None:
        await asyncio.to_thread(self._cluster.start)
        await self._cluster.until_whole()


@contextlib.asynccontextmanager
async def one_transaction(settings: KafkaSettings, name: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Within the block, sends records of one transaction, in a namespace of their own; each is there once after it."""
    sent: list[bytes] = []
    async with Bus(settings.model_copy(update={"namespace": f"{settings.namespace}.{name}"}), client_id=name) as bus:
        await bus.ensure_topics([TASKS])
        async with bus.producer(transactional_id=name) as producer:

            async def send(count: int) -> None:
                for _ in range(count):
                    sent.append(str(len(sent)).encode())
                    await producer.send_raw(TASKS, sent[-1], sent[-1])

            async with producer.transaction():
                yield send
        # A commit is answered before each partition's leader has its marker, so that a reader may still end before it.
        # Whoever takes the transactional id over is made to wait until all have it.
        async with bus.producer(transactional_id=name):
            pass
        async with bus.reader(TASKS, start="beginning", expect=()) as reader:
            found = [received.raw async for received in reader.replay()]
    assert sorted(found) == sorted(sent)


SOME = (Disturbance.kill_leaders, Disturbance.silence, Disturbance.leave_one)
ALL = (*SOME[:2], Disturbance.restart_all, Disturbance.fill_disk, SOME[2])


@pytest.mark.parametrize("faults", [SOME, at_night(ALL)], ids=["some", "all"])
async def test_whatever_befalls_one_broker_of_three_ends_nobody_and_loses_nothing(
    tmp_path: Path, faults: Sequence[Callable[[Disturbance], Awaitable[None]]]
) -> None:
    (health_port,) = quiet_ports(1)
    with broker_cluster(tmp_path / "brokers") as cluster:
        mesh = FaultMesh(
            tmp_path / "mesh",
            explorers=1,
            coordinator={"max_staleness": 1, "tick_s": 0.25, "explorer_timeout_s": 10, "group_size": GROUP_SIZE},
            explorer={"slots": 4, "heartbeat_s": 1.0},
            engine_delay_s=3.0 if is_three() else 1.5,
            broker=cluster,
            environment={**TIMES, "TRINITY_BUS_HEALTH__PORT": str(health_port)},
        )
        async with at_work(FaultClient, mesh, request_timeout_s=REQUEST_S) as client:
            disturbance = Disturbance(cluster, mesh, client, health_port)
            await client.until(MORE)
            for befall in faults:
                await befall(disturbance)
        log = client.log
        incarnations = {service.name: service.incarnations for service in mesh.services.values()}
    said = (tmp_path / "mesh" / "coordinator-0.log").read_text()
    assert "do as many brokers run as must have it (min.insync.replicas)?" in said
    assert "what waited is durable" in said
    log.check(max_staleness=1, max_inflight_batches=2)
    contents = log.contents()
    print(f"{client.sent} batches, {sum(log.sent.values())} tasks; {len(log.repeated())} repeated; {incarnations}")
    assert len(contents) == client.sent
    for content in contents.values():
        assert len(content.samples) == TASKS_IN_BATCH
        assert all([run for run, *_ in samples] == [*range(GROUP_SIZE)] for samples in content.samples.values())
    assert set(incarnations.values()) == {1}, incarnations
    assert_no_traceback(tmp_path)
