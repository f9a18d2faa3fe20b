"""A record of a few KiB that unpacks to 100 MiB: it passes the broker's limit, and no reader's."""

import hashlib
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from schemas.topic import DLQ_DETAIL, DLQ_REASON, DLQ_SHA256, DLQ_SIZE
from schemas.topics import COMMANDS, DEAD_LETTERS, EXPLORER_EVENTS, TASKS
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.records import take
from tests.support.mesh.waiting import until
from trinity_bus.bus.read.received import header
from trinity_bus.config import KafkaSettings

pytestmark = pytest.mark.integration
MIB = 1 << 20


def peak_mib(pid: int) -> int:
    """Most memory that a process has ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    raise AssertionError(f"no memory of process {pid}")


async def test_they_are_dead_letters_with_size_and_hash_and_the_coordinator_goes_on(
    kafka: KafkaSettings, mesh: Mesh
) -> None:
    bomb, over = bytes(100 * MIB), b"x" * (TASKS.max_message_bytes + 1)

    async with mesh.connected() as (bus, producer), bus.reader(DEAD_LETTERS, start="beginning") as letters:
        explorer = FakeExplorer(bus)
        async with explorer.alive(), FakeTrainer(bus).alive():
            with mesh.coordinator(batch_size=1) as process:
                await send_tasks(producer, 1, "before")
                await until(lambda: len(explorer.orders) == 1)
                before = peak_mib(process.pid)
                async with AIOKafkaProducer(
                    bootstrap_servers=kafka.bootstrap_servers,
                    compression_type="zstd",
                    max_request_size=1 << 30,
                    max_batch_size=1 << 30,
                ) as outsider:
                    for topic in (TASKS, COMMANDS, EXPLORER_EVENTS):
                        name = topic.full_name(mesh.kafka.namespace)
                        await outsider.send_and_wait(name, bomb, key=b"bomb", partition=0)
                    await outsider.send_and_wait(TASKS.full_name(mesh.kafka.namespace), over, key=b"over", partition=0)
                await send_tasks(producer, 1, "after")
                await until(lambda: len(explorer.orders) == 2)
                found = await take(letters, 4)
                assert process.poll() is None
                assert peak_mib(process.pid) - before < 100
        assert {header(letter.headers, DLQ_REASON) for letter in found} == {"too_large"}
        assert all(len(letter.raw) <= 1024 for letter in found)
        details = [header(letter.headers, DLQ_DETAIL) or "" for letter in found]
        assert sum("unpacks to more than" in detail for detail in details) == 3
        (single,) = [letter for letter in found if letter.raw_key == b"over"]
        assert header(single.headers, DLQ_SIZE) == str(len(over))
        assert header(single.headers, DLQ_SHA256) == hashlib.sha256(over).hexdigest()
        assert single.raw == over[:1024]
