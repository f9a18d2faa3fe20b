"""Records that programs outside the mesh follow, as CloudEvents."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from schemas import BatchLifecycleState, ExplorerLeft
from schemas.codec import encode
from schemas.topic import Topic
from schemas.topics import ALL_DEAD_LETTERS, BATCHES, DEAD_LETTERS, EXPLORER_EVENTS, MODEL_VERSIONS, RESULTS, TOPICS
from tests.support.fakes.mesh_records import batch
from tests.support.fakes.received import received
from trinity_bus.bus.write.producer import Producer
from trinity_bus.config import KafkaSettings


class NotedProducer(Producer):
    """Notes what would be sent."""

    def __init__(self) -> None:
        super().__init__(KafkaSettings(namespace="mesh-1"), client_id="test")
        self.sent: list[tuple[Any, bytes, dict[str, bytes]]] = []

    async def send_raw(  # type: ignore[override]
        self, topic: Topic, key: Any, value: bytes, *, headers: Sequence[tuple[str, bytes]] = (), **_: Any
    ) -> None:
        assert len(dict(headers)) == len(headers)
        self.sent.append((key, value, dict(headers)))


async def test_these_topics_have_events_and_the_same_record_has_one_id() -> None:
    producer = NotedProducer()
    running, finalized = (batch("b", state) for state in (BatchLifecycleState.RUNNING, BatchLifecycleState.FINALIZED))
    for record in (running, running, finalized):
        await producer.send(BATCHES, "b", record)
    (_, _, first), (_, _, again), (_, _, other) = producer.sent
    assert first.pop("ce_time") <= again.pop("ce_time")
    assert first == again
    assert first["ce_id"] != other["ce_id"]
    await producer.send(EXPLORER_EVENTS, "e", ExplorerLeft(explorer="e", incarnation="i", reason="r"))
    assert not any(name.startswith("ce_") for name in producer.sent[-1][2])
    assert {topic for topic in TOPICS if topic.cloud_events} == {BATCHES, MODEL_VERSIONS, RESULTS, *ALL_DEAD_LETTERS}


async def test_a_dead_letter_is_an_event_of_its_own_wherever_its_record_came_from() -> None:
    producer = NotedProducer()
    forged = (("ce_id", b"stolen"), ("ce_extra", b"x"), ("content-type", b"application/json"))
    refused = received(None, RESULTS, 7, headers=forged)
    for _ in range(2):
        await producer.send_dead_letter(refused, "not_msgpack", "why")
    (_, _, first), (_, _, again) = producer.sent
    assert first["ce_id"] == again["ce_id"] == b"results/0@7"
    assert (first["ce_source"], first["ce_type"]) == (b"/mesh-1/dead-letters", b"trinity-bus.dead_letter.v1")
    assert "ce_extra" not in first


async def test_the_official_package_reads_them() -> None:
    reason = "cloudevents is not part of the environment of tests"
    kafka = pytest.importorskip("cloudevents.core.bindings.kafka", reason=reason)
    formats = pytest.importorskip("cloudevents.core.formats.json", reason=reason)
    producer = NotedProducer()
    record = batch("b", BatchLifecycleState.RUNNING)
    await producer.send(BATCHES, "b", record)
    await producer.send_dead_letter(received(None, BATCHES, 7), "not_msgpack", "why", to=DEAD_LETTERS)
    events = [
        kafka.from_binary(kafka.KafkaMessage(headers, key, value), formats.JSONFormat())
        for key, value, headers in producer.sent
    ]
    told, letter = events
    assert (told.get_specversion(), told.get_source(), told.get_type()) == (
        *("1.0", "/mesh-1/batches", "trinity-bus.batch.v1"),
    )
    assert told.get_datacontenttype() == "application/vnd.msgpack"
    assert told.get_data() == encode(record)
    assert abs((datetime.now(UTC) - told.get_time()).total_seconds()) < 60
    assert (letter.get_id(), letter.get_type()) == ("batches/0@7", "trinity-bus.dead_letter.v1")
