"""Topics on a real broker: made as their records need, checked where they exist."""

import asyncio

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas.topics import BATCHES, EXPERIENCES, TASKS, TOPICS
from tests.support.mesh.mesh import with_topics
from trinity_bus.bus import Bus
from trinity_bus.bus.client.connection import administrator
from trinity_bus.bus.client.internals import client_of
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError

pytestmark = pytest.mark.integration


async def test_topics_are_made_with_their_configuration(empty: KafkaSettings) -> None:
    async with with_topics(empty) as bus:
        await bus.ensure_topics()
        assert await bus.end_offsets(EXPERIENCES) == dict.fromkeys(range(EXPERIENCES.partitions), 0)
    async with administrator(empty, "test") as admin:
        for topic in TOPICS:
            name = topic.full_name(empty.namespace)
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == topic.partitions
            (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            found = {entry[0]: entry[1] for entry in response.resources[0][4]}
            assert {key: found[key] for key in topic.config()} == topic.config()


async def test_no_client_asks_for_the_topics_of_others(empty: KafkaSettings) -> None:
    """Where many meshes share a cluster, the answer is megabytes for each client that starts."""
    others = empty.model_copy(update={"namespace": f"{empty.namespace}-others"})
    async with Bus(others, client_id="other") as other, Bus(empty, client_id="test") as bus:
        await other.ensure_topics([TASKS])
        await bus.ensure_topics([BATCHES])
        for client in (await bus._administrator(), (await bus._position_reader())._client):
            assert await client_of(client).force_metadata_update()
            assert client_of(client).cluster.topics() <= {BATCHES.full_name(empty.namespace)}


async def test_a_cluster_that_is_too_small_says_so(empty: KafkaSettings) -> None:
    # More than any cluster that tests run on has brokers.
    settings = empty.model_copy(update={"replication_factor": 9})
    async with Bus(settings, client_id="test") as bus:
        with pytest.raises(BusError, match=r"tasks cannot be created: .*[Rr]eplicat"):
            await bus.ensure_topics([TASKS])


async def test_a_topic_that_does_not_exist_is_told_at_once_and_not_after_the_time_of_a_request(
    empty: KafkaSettings,
) -> None:
    patient = empty.model_copy(update={"request_timeout_s": 600.0, "outage_s": 600.0})

    async with Bus(patient, client_id="test") as bus, asyncio.timeout(60):
        for ask in (bus.beginning_offsets, bus.end_offsets):
            with pytest.raises(BusError, match=r"there is no topic .*\.tasks: a service creates it"):
                await ask(TASKS)
        with pytest.raises(BusError, match=r"there is no topic .*\.batches, .*\.tasks: "):
            await bus.reader(TASKS, BATCHES).start()
