"""Which topics can have more partitions, and what is said of the others."""

import re
from typing import Any, cast

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from schemas.topics import EXPERIENCES, RESULTS, ROLLOUTS, TASKS, TOPICS
from trinity_bus.bus.partitioning import MOST_PARTITIONS, grow, partitions_of, refusal
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError


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


class LostBrokerAdmin:
    """Stands in for the client library's administrator, where the broker that makes partitions is gone."""

    async def describe_topics(self, _names: list[str]) -> list[dict[str, Any]]:
        return [{"error_code": 0, "partitions": [{}] * EXPERIENCES.partitions}]

    async def create_partitions(self, _wanted: dict[str, Any]) -> None:
        raise TimeoutError


async def test_a_broker_that_is_gone_ends_it_with_a_line() -> None:
    admin = cast("AIOKafkaAdminClient", LostBrokerAdmin())
    with pytest.raises(BrokerUnreachableError, match=r"grow trinity.experiences: no answer in time; is the broker run"):
        await grow(admin, KafkaSettings(), EXPERIENCES, EXPERIENCES.partitions + 1)
