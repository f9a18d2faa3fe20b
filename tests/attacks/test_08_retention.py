"""Time deletes nothing that waits to be read or trained; what nobody needs goes, and a manifest names nothing gone."""

import asyncio
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas import BatchRecord, ManifestEntry, ResultPart, Task
from schemas.topic import Topic
from schemas.topics import BATCHES, EXPERIENCES, EXPLORER_EVENTS, TASKS, VERSION_HISTORY
from tests.support.fakes.experiences import make_group
from tests.support.fakes.mesh_records import finalized
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.faults.raw_batches import aged_segment
from tests.support.mesh.mesh import Mesh, make_topics, own_broker, send_tasks, with_topics
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.broker import EmbeddedBroker, layout
from trinity_bus.bus import Bus
from trinity_bus.bus.client.connection import administrator
from trinity_bus.config import CoordinatorSettings, KafkaSettings
from trinity_bus.coordination import CoordinatorMachine, retention
from workers.coordinator.retention import Commits, Keeper
from workers.trainer.batch_schedule import positions_of

pytestmark = pytest.mark.integration
DAY_MS = 24 * 3_600_000


async def begins(bus: Bus, topic: Topic) -> int:
    """How many records of a topic are deleted."""
    return sum((await bus.beginning_offsets(topic)).values())


async def until_begun(bus: Bus, topic: Topic, deleted: int) -> None:
    async with asyncio.timeout(60):
        while await begins(bus, topic) < deleted:  # noqa: ASYNC110 - another process deletes
            await asyncio.sleep(0.1)


async def test_a_task_that_says_it_is_old_is_as_old_as_it_is(kafka: KafkaSettings, mesh: Mesh) -> None:
    async with mesh.connected() as (bus, _), bus.reader(TASKS, start="beginning") as reader:
        began = time.time()
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as outsider:
            await outsider.send_and_wait(TASKS.full_name(mesh.kafka.namespace), b"{}", timestamp_ms=1)
        (record,) = await reader.batch(30)
        assert abs(record.timestamp_ms / 1000 - began) < 3600


async def test_topics_of_an_earlier_version_are_kept_as_today_s_are(kafka: KafkaSettings, tmp_path: Path) -> None:
    settings = Mesh(kafka, tmp_path).kafka
    name = TASKS.full_name(settings.namespace)
    earlier = {
        "cleanup.policy": "delete",
        "retention.ms": str(7 * DAY_MS),
        "max.message.bytes": str(TASKS.max_message_bytes),
        "unclean.leader.election.enable": "false",
    }

    async with administrator(settings, "test") as admin:
        await admin.create_topics([NewTopic(name, TASKS.partitions, 1, topic_configs=earlier)])
        await make_topics(settings, [TASKS])
        wanted = {key: TASKS.config()[key] for key in ("retention.ms", "retention.bytes", "message.timestamp.type")}
        entries: dict[str, Any] = {}
        # What a controller has accepted reaches the brokers a moment later.
        async with asyncio.timeout(150):
            while not wanted.items() <= {key: entry[1] for key, entry in entries.items()}.items():
                (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
                entries = {entry[0]: entry for entry in response.resources[0][4]}
        assert entries["unclean.leader.election.enable"][3] == 1, "what others have set stays"

        # As the runbook has an operator do it.
        larger = {key: entry[1] for key, entry in entries.items() if entry[3] == 1} | {"retention.bytes": str(1 << 40)}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, larger)])
        async with asyncio.timeout(150), Bus(settings, client_id="test") as bus:
            while await bus.budgets([TASKS]) != {"tasks": 1 << 40}:  # noqa: ASYNC110 - the broker changes it
                await asyncio.sleep(0.05)
            await bus.ensure_topics([TASKS])
            assert await bus.budgets([TASKS]) == {"tasks": 1 << 40}, "a larger budget stays"


async def test_what_is_read_and_trained_goes_and_what_is_not_stays(mesh: Mesh) -> None:
    settings: dict[str, Any] = {"batch_size": 2, "retention_s": 0.3, "keep_s": 0}

    async with (
        mesh.connected() as (bus, producer),
        FakeTrainer(bus).alive() as trainer,
        FakeExplorer(bus).alive(),
    ):
        with mesh.coordinator(**settings):
            await send_tasks(producer, 4)
            await trainer.until_trained(2)
            assert max((await bus.sizes([TASKS, EXPERIENCES])).values()) > 0
            await until_begun(bus, TASKS, 4)
            await until_begun(bus, EXPLORER_EVENTS, 1)
            assert await begins(bus, EXPERIENCES) == 0, "no checkpoint holds what was trained"
            positions = [place for batch in trainer.trained for place in positions_of(batch, batch.manifest)]
            assert len(await bus.fetch(EXPERIENCES, positions)) == 4
            trainer.needs_from = trainer.read_to
            await until_begun(bus, EXPERIENCES, 4)
            # The next one is finalized, and not in a checkpoint yet.
            await send_tasks(producer, 2, "later")
            await trainer.until_trained(3)
            await asyncio.sleep(2)
            assert await begins(bus, EXPERIENCES) == 4
        # What came while nobody read is there, whatever its age.
        await send_tasks(producer, 2, "waits")
        with mesh.coordinator(**settings):
            await trainer.until_trained(4)


async def test_a_manifest_never_names_what_is_gone(mesh: Mesh) -> None:
    held = True
    async with mesh.connected() as (bus, producer), FakeTrainer(bus).alive() as trainer:
        explorer = FakeExplorer(bus, hold=lambda order: held and order.task.task_id == "task-3")
        async with explorer.alive():
            with mesh.coordinator(batch_size=4, task_timeout_s=2):
                await send_tasks(producer, 4)
                await until(lambda: len(explorer.orders) >= 4)
                ends: dict[Any, Any] = {}
                async with asyncio.timeout(150):
                    while sum(ends.values()) < 3:
                        ends = await bus.end_offsets(EXPERIENCES)
                await bus.delete_before({(EXPERIENCES.name, p): end for p, end in ends.items() if end})
                held = False
                await trainer.until_trained(1)
        (batch,) = trainer.trained
        lost = [entry for entry in batch.manifest if entry.status == "failed"]
        assert sorted(entry.task_id for entry in lost) == ["task-0", "task-1", "task-2"]
        assert all("was gone before the batch ended" in (entry.error or "") for entry in lost)
        kept = [entry for entry in batch.manifest if entry.status != "failed"]
        assert len(await bus.fetch(EXPERIENCES, positions_of(batch, kept))) == 1


async def test_ended_batches_are_forgotten(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCHES_KEPT", 2)
    async with mesh.connected() as (bus, producer):
        for number in range(5):
            ended = finalized(0, batch_id=f"b{number}", batch_type="eval")
            await producer.send(BATCHES, ended.batch_id, ended)
        await producer.flush()
        commits = Commits({})
        keeper = Keeper(bus, partial(CoordinatorMachine, CoordinatorSettings()), commits, every_s=0.05, keep_s=0)
        forgotten: list[str] = []
        async with keeper.working(), asyncio.timeout(60):
            while not forgotten:
                commits.made({}, 0)
                forgotten = [key for topic, key in keeper.take_tombstones() if topic is BATCHES]
                await asyncio.sleep(0.05)
        assert forgotten == ["b0", "b1", "b2"]
        assert VERSION_HISTORY.cleanup == BATCHES.cleanup == "compact", "tombstones have an effect"


def aged(log: Path, by_ms: int) -> None:
    """Makes every record of a log older, as it lies on the disk."""
    for segment in log.glob("*/*.log"):
        if segment.parent.name.startswith("__"):
            continue
        segment.write_bytes(aged_segment(segment.read_bytes(), by_ms))
        for index in segment.parent.glob("*.timeindex"):
            index.unlink()
        # Without an index the file's own time counts.
        then = time.time() - by_ms / 1000
        os.utime(segment, (then, then))


@pytest.mark.timeout(300)
async def test_a_backup_that_is_ten_days_old_has_all_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = layout.server_properties

    def impatient(*args: Any, **options: Any) -> dict[str, object]:
        return patient(*args, **options) | {"log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 100}

    namespace = "restored"
    control = f"{namespace}.control"

    async def write(kafka: KafkaSettings) -> None:
        async with with_topics(kafka) as bus, bus.producer() as producer:
            await send_tasks(producer, 5)
            sent = await producer.send(EXPERIENCES, "t", make_group(task_id="t"))
            part = ResultPart(attempt=1, samples=4, position=await sent)
            untrained = finalized(1, manifest=[ManifestEntry(task_id="t", status="completed", parts=[part])])
            await (await producer.send(BATCHES, untrained.batch_id, untrained))
        async with administrator(kafka, "test") as admin:
            configs = {"retention.ms": str(7 * DAY_MS), "message.timestamp.type": "LogAppendTime"}
            await admin.create_topics([NewTopic(control, 1, 1, topic_configs=configs)])
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as outsider:
            await outsider.send_and_wait(control, b"kept for a week", partition=0)

    async def read(kafka: KafkaSettings) -> None:
        place = TopicPartition(control, 0)
        async with AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers) as outsider, asyncio.timeout(90):
            while (await outsider.beginning_offsets([place]))[place] == 0:  # noqa: ASYNC110 - the broker deletes
                await asyncio.sleep(0.2)
        async with Bus(kafka, client_id="test") as bus:
            async with bus.reader(TASKS, BATCHES, start="beginning") as reader:
                found = [received.record async for received in reader.replay()]
            assert sum(isinstance(record, Task) for record in found) == 5
            (batch,) = [record for record in found if isinstance(record, BatchRecord)]
            (received,) = await bus.fetch(EXPERIENCES, positions_of(batch, batch.manifest))
            assert record_of(received).task_id == "t"

    with EmbeddedBroker(own_broker(tmp_path / "original")) as broker:
        await write(broker.kafka_settings(KafkaSettings(namespace=namespace)))
    backup: Path = shutil.copytree(tmp_path / "original", tmp_path / "restored")
    aged(backup / "kafka", 10 * DAY_MS)
    monkeypatch.setattr(layout, "server_properties", impatient)
    with EmbeddedBroker(own_broker(backup)) as broker:
        await read(broker.kafka_settings(KafkaSettings(namespace=namespace)))
