"""What a neighbour or an ordinary client can do with a connection, a transaction, a partition or a reply."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from aiokafka.admin import NewPartitions

from schemas.topics import REPLIES, TASKS
from tests.support.mesh.mesh import Mesh
from tests.support.mesh.probe import probe
from tests.support.mesh.waiting import until, wait_until
from trinity_bus.bus import Bus
from trinity_bus.bus.client.connection import administrator
from trinity_bus.client.channel import CommandChannel
from trinity_bus.config import HealthSettings, KafkaSettings
from trinity_bus.health import process as health
from trinity_bus.health.process import HealthServer, HealthState

# -- health ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[HealthServer]:
    state = HealthState(time.monotonic(), wedged_s=1000, start_s=1000, unread_s=1000)
    made = HealthServer(HealthSettings(port=0), state, lambda: None)
    yield made
    made.close()


def test_connections_that_say_nothing_take_no_probes_place_and_few_threads(endpoint: HealthServer) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as strangers:
        for _ in range(2 * health.MAX_CONNECTIONS):
            strangers.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
        assert probe(endpoint.port, "/livez")[0] == 200
        wait_until(lambda: threading.active_count() <= before + health.MAX_CONNECTIONS)
        assert probe(endpoint.port, "/livez")[0] == 200


def test_who_says_a_byte_now_and_then_is_hung_up_on(endpoint: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_S", 1.0)
    with socket.create_connection(("127.0.0.1", endpoint.port)) as slow:
        slow.settimeout(0.1)
        began = time.monotonic()
        while time.monotonic() - began < 20:
            try:
                slow.sendall(b"G")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() - began < 15
    assert probe(endpoint.port, "/livez")[0] == 200


# -- the log ---------------------------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_partitions_that_are_added_to_a_topic_in_use_are_told(
    kafka: KafkaSettings, mesh: Mesh, caplog: pytest.LogCaptureFixture
) -> None:
    async with mesh.connected(), Bus(mesh.kafka, client_id="reads") as bus:
        async with administrator(kafka, "test") as admin:
            await admin.create_partitions({TASKS.full_name(mesh.kafka.namespace): NewPartitions(TASKS.partitions + 2)})
        # One that was there before finds out when it asks for metadata again, five minutes later at most.
        async with bus.reader(TASKS, start="beginning") as reader, asyncio.timeout(60):
            while "tasks has 10 partitions and needs exactly 8" not in caplog.text:
                await reader.keeps_up()
                await reader.batch(0.1)


@pytest.mark.integration
async def test_a_large_reply_that_cannot_be_read_is_a_short_line(mesh: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    async with mesh.connected() as (bus, producer), CommandChannel(bus, producer, name="c"):
        await (await producer.send_raw(REPLIES, "c", b"\x00" * 500_000))
        await until(lambda: "is no reply" in caplog.text)
        assert len(caplog.text) < 2000
