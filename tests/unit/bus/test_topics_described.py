"""Topics that a user may not create, or that a broker is asked for which is gone.

A slow answer says nothing of them, what is lacking is named, and another broker is asked where one is gone.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource
from aiokafka.errors import InvalidReplicationFactorError, NodeNotReadyError

from schemas.topics import BATCHES, TASKS
from trinity_bus.bus import topics
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError, BusError

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


class LostBrokerAdmin(SlowAdmin):
    """Stands in for the same, where the broker that is to be asked is gone: each failure is the library's own.

    Args:
        failures: Of one question each.
        forever: The first of them is that of every question.
    """

    def __init__(self, *failures: Exception, forever: bool = False) -> None:
        super().__init__(0)
        self._failures = list(failures)
        self._forever = forever
        self._client = self
        self.learned = 0

    async def create_topics(self, wanted: list[Any]) -> SimpleNamespace:
        if self._failures:
            raise self._failures[0] if self._forever else self._failures.pop(0)
        return await super().create_topics(wanted)

    async def force_metadata_update(self) -> None:
        self.learned += 1

    def check_credentials(self) -> None:
        """They are sound."""


async def test_another_broker_is_asked_where_the_one_that_creates_topics_is_gone() -> None:
    admin = LostBrokerAdmin(TimeoutError(), NodeNotReadyError())
    assert await topics.ensure(cast("AIOKafkaAdminClient", admin), SETTINGS, [TASKS]) == []
    assert admin.learned == 2


async def test_brokers_that_stay_away_end_the_question_with_a_line() -> None:
    admin = cast("AIOKafkaAdminClient", LostBrokerAdmin(TimeoutError(), forever=True))
    settings = SETTINGS.model_copy(update={"outage_s": 0.3})
    with pytest.raises(BrokerUnreachableError, match=r"create topics: no answer in time; is the broker running\?"):
        await topics.ensure(admin, settings, [TASKS])


async def test_what_a_broker_refuses_is_not_asked_for_again() -> None:
    admin = LostBrokerAdmin(InvalidReplicationFactorError())
    with pytest.raises(BusError, match="create topics: InvalidReplicationFactorError"):
        await topics.ensure(cast("AIOKafkaAdminClient", admin), SETTINGS, [TASKS])
    assert admin.learned == 0
