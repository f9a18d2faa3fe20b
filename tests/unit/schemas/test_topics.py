import re
from typing import Any, cast

import pytest

from schemas import Superseded
from schemas.codec import RECORDS
from schemas.topic import Topic
from schemas.topics import BATCHES, COMMANDS, COORDINATOR_STATE, DEAD_LETTERS, MODEL_VERSIONS, OPERATOR_COMMANDS, TOPICS


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_names_are_legal_the_largest_record_fits_and_configurations_are_kafkas(topic: Topic) -> None:
    assert topic.full_name("trinity") == f"trinity.{topic.name}"
    assert re.fullmatch(r"[a-z0-9-]{1,60}", topic.name)
    for cls in topic.records:
        assert topic.max_message_bytes > cls.MAX_BYTES  # type: ignore[attr-defined]  # every record type has it
    config = topic.config()
    assert config.pop("cleanup.policy") == topic.cleanup
    assert config.pop("message.timestamp.type") == "LogAppendTime"
    assert all(re.fullmatch(r"-1|\d+", value) for value in config.values())
    assert ("retention.ms" in config) == (topic.cleanup == "delete")
    assert ("min.compaction.lag.ms" in config) == (topic.cleanup == "compact")


def test_every_record_has_one_topic_but_what_operators_ask_too_and_what_services_of_two_kinds_are_told() -> None:
    records: list[Any] = [cls for topic in TOPICS for cls in topic.records]
    carried = [cls.SCHEMA for cls in records]
    of_operators = [cls.SCHEMA for cls in cast("tuple[Any, ...]", OPERATOR_COMMANDS.records) if cls in COMMANDS.records]
    assert sorted(carried) == sorted([cls.SCHEMA for cls in RECORDS] + of_operators + [Superseded.SCHEMA])
    assert of_operators == ["command.abort_batch", "command.cancel_tasks"]


def test_anything_fits_among_the_dead_letters_and_what_has_an_order_has_one_partition() -> None:
    assert max(topic.max_message_bytes for topic in TOPICS) == DEAD_LETTERS.max_message_bytes
    assert {topic.partitions for topic in (BATCHES, MODEL_VERSIONS, COORDINATOR_STATE)} == {1}


def test_time_alone_deletes_nothing_that_waits_to_be_read_or_trained() -> None:
    kept = {topic.name for topic in TOPICS if topic.keep_ms is not None}
    events, given = {"explorer-events", "trainer-events"}, {"tasks", "commands", "operator-commands"}
    assert kept == given | events | {"experiences", "turns"}
    for topic in TOPICS:
        if topic.name in kept:
            assert topic.retention_ms == -1
            assert topic.retention_bytes > 0, "there is a budget"
