"""What is found on this machine and on a real broker: topics that are absent, then there."""

import asyncio
import socket

import pytest

from schemas.topics import COORDINATOR_EVENTS, TOPICS
from tests.support.mesh.mesh import make_topics, unused, with_topics
from trinity_bus.config import KafkaSettings, Settings
from workers.doctor.facts import gather
from workers.doctor.findings import findings

pytestmark = pytest.mark.integration


async def test_a_broker_is_looked_at_and_not_changed(kafka: KafkaSettings) -> None:
    own = unused(kafka)
    settings = Settings().model_copy(update={"kafka": own})
    for _ in range(2):
        facts = await gather(settings, ["coordinator"])
        assert facts.broker.error is None
        assert list(facts.broker.absent) == [topic.name for topic in TOPICS]
    await make_topics(own)
    facts = await gather(settings, ["coordinator"])
    assert (list(facts.broker.absent), list(facts.broker.refused)) == ([], [])
    assert (facts.broker.ahead_s, list(facts.broker.unknown)) == (None, []), "nobody speaks here"
    assert facts.versions["trinity-bus"] is not None
    assert facts.memory_mib is not None
    assert [finding.subject for finding in findings(facts) if finding.level == "error"] == []


async def test_clocks_are_compared_by_what_a_coordinator_says(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = unused(kafka)
    settings = Settings().model_copy(update={"kafka": own})
    monkeypatch.setattr("workers.doctor.facts._HEARD_S", 60.0)
    async with with_topics(own) as bus, bus.producer() as producer:

        async def speak() -> None:
            while True:
                await (await producer.send_raw(COORDINATOR_EVENTS, "coordinator", b"alive"))
                await asyncio.sleep(0.05)

        speaking = asyncio.create_task(speak())
        try:
            facts = await gather(settings, [])
        finally:
            speaking.cancel()
    assert facts.broker.ahead_s is not None
    assert abs(facts.broker.ahead_s) < 2.0, "one machine has one clock"


async def test_a_broker_that_does_not_answer_is_told() -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9", request_timeout_s=1)
    facts = await gather(Settings().model_copy(update={"kafka": kafka}), [])
    assert "connection refused" in str(facts.broker.error)


async def test_ports_that_another_process_has_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9", request_timeout_s=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in ("CONSOLE__PORT", "EXPLORER__HTTP_PORT", "HEALTH__PORT"):
            monkeypatch.setenv(f"TRINITY_BUS_{name}", str(port))
        monkeypatch.setenv("TRINITY_BUS_TRAINER__WEIGHTS_PORT", f"{port}-{port}")
        settings = Settings().model_copy(update={"kafka": kafka})
        alone = await gather(settings, [])
        assert alone.taken_ports == {"explorer.http_port": port, "health.port": port}
        both = await gather(settings, ["console", "trainer"])
        assert both.taken_ports == dict.fromkeys([*alone.taken_ports, "console.port", "trainer.weights_port"], port)
    assert (await gather(settings, ["console", "trainer"])).taken_ports == {}
