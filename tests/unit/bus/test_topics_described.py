"""Topics that a user may not create: a slow answer says nothing of them, and what is lacking is named."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource

from schemas.topics import BATCHES, TASKS
from trinity_bus.bus import topics
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError

SETTINGS = KafkaSettings()
THERE = TASKS.full_name(SETTINGS.namespace)
NOT_ALLOWED, UNKNOWN = 29, 3


class SlowAdmin:
    """Stands in for the client library's administrator, on a cluster that has ``tasks`` and answers slowly."""

    def __init__(self, answers_s: float) -> None:
        self._answers_s = answers_s

    async def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{}]}

    async def create_topics(self, wanted: list[Any]) -> SimpleNamespace:
        return SimpleNamespace(topic_errors=[(topic.name, NOT_ALLOWED, None) for topic in wanted])

    async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        await asyncio.sleep(self._answers_s)
        partitions = [{"replicas": [1], "leader": 1}] * TASKS.partitions
        return [
            {"topic": name, "error_code": 0 if name == THERE else UNKNOWN, "partitions": partitions} for name in names
        ]

    async def describe_configs(self, resources: list[ConfigResource]) -> list[SimpleNamespace]:
        await asyncio.sleep(self._answers_s)
        wanted = topics.config_of(TASKS, SETTINGS) | topics.durability(1)
        kept = {"message.timestamp.type": "CreateTime", "retention.ms": "1", "retention.bytes": "1"}
        entries = [(key, value, False, 5) for key, value in (kept | wanted).items()]
        return [SimpleNamespace(resources=[(0, None, 2, resource.name, entries) for resource in resources])]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "CREATION_S", 0.05)


async def ensure(answers_s: float, *wanted: Any) -> list[Any]:
    return await topics.ensure(cast("AIOKafkaAdminClient", SlowAdmin(answers_s)), SETTINGS, wanted)


async def test_an_answer_that_comes_late_is_an_answer() -> None:
    assert await ensure(0.2, TASKS) == []


async def test_what_is_lacking_is_named_and_nothing_else() -> None:
    with pytest.raises(BusError, match=f"topics {BATCHES.full_name(SETTINGS.namespace)} are not there, or hidden"):
        await ensure(0.01, TASKS, BATCHES)
