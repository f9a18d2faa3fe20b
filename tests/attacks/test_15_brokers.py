"""What is acknowledged outlives a broker, where there are the brokers for it; and a start says where it would not.

Before: topics had one copy unless somebody set another number, ``min.insync.replicas`` was the cluster's own (1), and
neither it nor unclean elections were looked at. With three copies one broker alone could acknowledge a record, and take
it with it.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError

from schemas import Task
from schemas.topics import BATCHES, TASKS, TOPICS
from tests.support.mesh.broker_cluster import BrokerCluster, broker_cluster
from tests.support.mesh.mesh import described, make_topics, with_topics
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import wait_until
from trinity_bus.bus import Bus
from trinity_bus.bus.client.connection import administrator
from trinity_bus.bus.client.internals import client_of
from trinity_bus.bus.topics import ExistingTopic, copies_for, durability, mismatches, weaknesses
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, TopicMismatchError

AS_NEEDED: dict[str, Any] = {
    "partitions": TASKS.partitions,
    "cleanup": TASKS.cleanup,
    "max_message_bytes": TASKS.max_message_bytes,
}


@pytest.mark.parametrize(
    ("wanted", "brokers", "copies", "in_sync"),
    [(None, 1, 1, 1), (None, 2, 2, 1), (None, 3, 3, 2), (None, 9, 3, 2), (1, 9, 1, 1), (5, 9, 5, 2), (None, 0, 1, 1)],
)
def test_a_new_topic_has_the_copies_that_the_cluster_allows(
    wanted: int | None, brokers: int, copies: int, in_sync: int
) -> None:
    assert copies_for(wanted, brokers) == copies
    assert durability(copies) == {
        "min.insync.replicas": str(in_sync),
        "unclean.leader.election.enable": "false",
    }


@pytest.mark.parametrize(
    ("copies", "min_in_sync", "unclean", "problem"),
    [
        (1, 1, False, None),
        (1, 1, True, None),
        (2, 1, False, None),
        (3, 2, False, None),
        (3, 3, False, None),
        (3, 1, False, "its min.insync.replicas is 1 and must be 2 with 3 copies"),
        (1, 2, False, "its min.insync.replicas is 2 and must not be above its 1 copies"),
        (3, 2, True, "its unclean.leader.election.enable is true and must be false"),
    ],
)
def test_an_existing_topic_that_would_lose_records_is_refused(
    copies: int, min_in_sync: int, unclean: bool, problem: str | None
) -> None:
    found = ExistingTopic(**AS_NEEDED, copies=copies, min_in_sync=min_in_sync, unclean=unclean)
    wrong = mismatches(TASKS, found, TASKS.max_message_bytes)
    assert wrong == [] if problem is None else wrong[0].startswith(problem)


def test_fewer_copies_than_there_could_be_are_told_and_no_reason_to_stop() -> None:
    found = {
        "a": ExistingTopic(**AS_NEEDED),
        "b": ExistingTopic(**AS_NEEDED, copies=3, min_in_sync=3),
        "c": ExistingTopic(**AS_NEEDED, copies=3, min_in_sync=2),
    }
    few, stiff = weaknesses(found, KafkaSettings(), brokers=3)
    assert few.startswith("fewer than 3 copies are kept of a, ")
    assert stiff.startswith("min.insync.replicas equals the number of copies of b: ")
    assert weaknesses(found, KafkaSettings(replication_factor=1), brokers=3) == [stiff]
    assert weaknesses({"a": ExistingTopic(**AS_NEEDED)}, KafkaSettings(), brokers=1) == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("cluster"), controllers=1) as found:
        yield found


@pytest.fixture
def settings(cluster: BrokerCluster, request: pytest.FixtureRequest) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, namespace=request.node.name[:60])


async def prepare(settings: KafkaSettings) -> None:
    await make_topics(settings)


@pytest.mark.integration
async def test_three_brokers_keep_three_copies_and_two_must_have_each_record(settings: KafkaSettings) -> None:
    await prepare(settings)
    for topic in TOPICS:
        copies, configs = await described(settings, topic.full_name(settings.namespace))
        async with asyncio.timeout(60):
            # The broker that is asked may hear of it later than the one that told of it first.
            while len(copies) < topic.partitions:
                copies, configs = await described(settings, topic.full_name(settings.namespace))
        assert copies == [3] * topic.partitions
        assert configs["min.insync.replicas"] == "2"
        assert configs["unclean.leader.election.enable"] == "false"


@pytest.mark.integration
async def test_a_start_refuses_topics_that_lose_records_and_names_the_setting(
    settings: KafkaSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with administrator(settings, "test") as admin:
        weak = TASKS.config() | {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        await admin.create_topics(
            [
                NewTopic(TASKS.full_name(settings.namespace), TASKS.partitions, 3, topic_configs=weak),
                NewTopic(BATCHES.full_name(settings.namespace), 1, 1, topic_configs=BATCHES.config()),
            ]
        )
    async with Bus(settings, client_id="test") as bus:
        with pytest.raises(TopicMismatchError) as caught:
            await bus.ensure_topics([TASKS])
        for said in (r"min.insync.replicas is 1 and must be 2", "unclean.leader.election.enable is true"):
            assert said in str(caught.value)
        with caplog.at_level(logging.WARNING, "trinity_bus.bus.topics"):
            await bus.ensure_topics([BATCHES])
        assert "fewer than 3 copies are kept of" in caplog.text


@pytest.mark.integration
async def test_a_start_asks_another_broker_where_the_one_that_it_would_ask_is_gone(
    cluster: BrokerCluster, settings: KafkaSettings
) -> None:
    """Before: it ended after ``kafka.request_timeout_s``, with a traceback."""
    await prepare(settings)
    async with Bus(settings.model_copy(update={"request_timeout_s": 2.0}), client_id="test") as bus:
        client = client_of(await bus._administrator())
        # The one that is the controller is to stay: there would be no other.
        async with asyncio.timeout(60):
            while (asked := client.cluster.controller.nodeId) == cluster.size:
                await client.force_metadata_update()
        cluster.kill(asked)
        try:
            await bus.ensure_topics()
        finally:
            await asyncio.to_thread(cluster.start)
            await cluster.until_whole()


@pytest.mark.integration
async def test_brokers_tell_of_disks_sizes_and_copies_and_the_loss_of_one_is_seen(
    cluster: BrokerCluster, settings: KafkaSettings
) -> None:
    async with with_topics(settings) as bus:
        async with bus.producer() as producer:
            await (await producer.send_raw(TASKS, "k", b"v" * 10_000))
        observer = await bus.cluster_observer()
        whole = {topic.name: 0 for topic in TOPICS}.items()
        async with asyncio.timeout(60):
            # On a busy machine copies lag behind until the broker finds the time.
            while not whole <= (before := await observer.look()).under_replicated.items():
                pass
        assert before.sizes["tasks"] > 10_000
        assert len(before.disks) == cluster.size
        assert all(0 < disk.free <= disk.size for disk in before.disks.values())
        assert (await observer.partition_sizes())["experiences", 0] == 0
        cluster.kill(1)
        try:
            async with asyncio.timeout(60):
                lacking = 0
                while lacking != TASKS.partitions:
                    # The first question may go to the one that is dead.
                    with suppress(BusError):
                        lacking = (await observer.look()).under_replicated["tasks"]
        finally:
            await asyncio.to_thread(cluster.start)
            await cluster.until_whole()


@pytest.mark.integration
async def test_a_broker_is_killed_and_nothing_is_lost_and_one_alone_acknowledges_nothing(
    cluster: BrokerCluster, settings: KafkaSettings
) -> None:
    """Last in this file: it leaves one broker of three."""
    name = TASKS.full_name(settings.namespace)

    async def send(count: int, begin: int) -> None:
        async with Bus(settings, client_id="test") as bus, bus.producer() as producer:
            for number in range(begin, begin + count):
                task = Task(task_id=f"t{number}", workflow="w", prompt="p")
                await (await producer.send(TASKS, task.task_id, task))

    async def read(count: int) -> set[str]:
        seen: set[str] = set()
        async with Bus(settings, client_id="test") as bus, bus.reader(TASKS, start="beginning") as reader:
            async with asyncio.timeout(60):
                while len(seen) < count:
                    seen.update(record_of(received).task_id for received in await reader.batch(1.0))
        return seen

    await prepare(settings)
    await send(50, 0)
    cluster.kill(1)
    wait_until(lambda: cluster.alive() == 2, "a cluster of two", 60)
    await send(50, 50)
    assert await read(100) == {f"t{number}" for number in range(100)}
    cluster.kill(2)
    wait_until(lambda: cluster.alive() == 1, "a cluster of one", 60)
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers, acks="all", request_timeout_ms=5000)
    await producer.start()
    try:
        with pytest.raises(KafkaError):
            await asyncio.wait_for(producer.send_and_wait(name, b"v", key=b"k"), 60)
    finally:
        await asyncio.wait_for(producer.stop(), 60)
