"""Topics that a user may not create, or that a broker is asked for which is gone.

A slow answer says nothing of them, what is lacking is named, and another broker is asked where one is gone.
"""

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource
from aiokafka.errors import InvalidReplicationFactorError

from schemas.topics import BATCHES, EXPERIENCES, RESULTS, ROLLOUTS, TASKS, TOPICS
from trinity_bus.bus import topics
from trinity_bus.bus.partitioning import MOST_PARTITIONS, grow, partitions_of, refusal
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


async def test_an_answer_that_comes_late_is_an_answer_and_what_is_lacking_is_named() -> None:
    assert await ensure(0.2, TASKS) == []
    with pytest.raises(BusError, match=f"topics {BATCHES.full_name(SETTINGS.namespace)} are not there, or hidden"):
        await ensure(0.01, TASKS, BATCHES)


class LostBrokerAdmin(SlowAdmin):
    """Stands in for the same, where the broker that is to be asked is gone: every question fails as the library's."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(0)
        self._failure = failure
        self._client = self
        self.learned = 0

    async def create_topics(self, wanted: list[Any]) -> SimpleNamespace:
        raise self._failure

    async def force_metadata_update(self) -> None:
        self.learned += 1

    def check_credentials(self) -> None:
        """They are sound."""


async def test_brokers_that_stay_away_end_the_question_with_a_line() -> None:
    admin = cast("AIOKafkaAdminClient", LostBrokerAdmin(TimeoutError()))
    settings = SETTINGS.model_copy(update={"outage_s": 0.3})
    with pytest.raises(BrokerUnreachableError, match=r"create topics: no answer in time; is the broker running\?"):
        await topics.ensure(admin, settings, [TASKS])


async def test_what_a_broker_refuses_is_not_asked_for_again() -> None:
    admin = LostBrokerAdmin(InvalidReplicationFactorError())
    with pytest.raises(BusError, match="create topics: InvalidReplicationFactorError"):
        await topics.ensure(cast("AIOKafkaAdminClient", admin), SETTINGS, [TASKS])
    assert admin.learned == 0


def test_a_topic_grows_only_where_any_partition_will_do_or_readers_say_which_they_read() -> None:
    for topic in TOPICS:
        why = refusal(topic, topic.partitions, topic.partitions + 1)
        assert (why is None) == (topic in (EXPERIENCES, RESULTS, ROLLOUTS))
        if why is not None:
            assert ("order" in why) == (topic.partitions == 1)
            assert why.endswith("make several meshes")


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (16, "None"),
        (8, "experiences has 16 partitions, and Kafka takes none away"),
        (MOST_PARTITIONS, "None"),
        # A slip of the finger, which no broker could undo.
        (1_000_000, "1000000 partitions are too many for experiences, of which .*1024 at most"),
    ],
)
def test_none_shrinks_or_grows_beyond_what_a_broker_can_take(wanted: int, why: str) -> None:
    assert re.match(why, str(refusal(EXPERIENCES, 16, wanted)))


def test_what_grows_has_the_partitions_that_are_known_and_the_others_those_they_are_made_with() -> None:
    assert partitions_of(EXPERIENCES, range(12)) == range(12)
    assert partitions_of(EXPERIENCES, None) == range(EXPERIENCES.partitions)
    assert partitions_of(TASKS, range(12)) == range(TASKS.partitions)


class LostGrowingAdmin:
    """Stands in for the client library's administrator, where the broker that makes partitions is gone."""

    async def describe_topics(self, _names: list[str]) -> list[dict[str, Any]]:
        return [{"error_code": 0, "partitions": [{}] * EXPERIENCES.partitions}]

    async def create_partitions(self, _wanted: dict[str, Any]) -> None:
        raise TimeoutError


async def test_a_broker_that_is_gone_ends_it_with_a_line() -> None:
    admin = cast("AIOKafkaAdminClient", LostGrowingAdmin())
    with pytest.raises(BrokerUnreachableError, match=r"grow trinity.experiences: no answer in time; is the broker run"):
        await grow(admin, KafkaSettings(), EXPERIENCES, EXPERIENCES.partitions + 1)
