"""What is found on this machine and on a real broker: topics that are absent, then there."""

import asyncio
import socket

import pytest

from schemas.topics import COORDINATOR_EVENTS, TOPICS
from tests.support.mesh.mesh import make_topics, unused, with_topics
from trinity_bus.config import KafkaSettings, Settings
from workers.doctor.checks import findings, look_at_broker

pytestmark = pytest.mark.integration


async def test_a_broker_is_looked_at_and_not_changed(kafka: KafkaSettings) -> None:
    own = unused(kafka)
    settings = Settings().model_copy(update={"kafka": own})
    for _ in range(2):
        broker = await look_at_broker(settings, ["coordinator"])
        assert broker.error is None
        assert list(broker.absent) == [topic.name for topic in TOPICS]
    await make_topics(own)
    broker = await look_at_broker(settings, ["coordinator"])
    assert (list(broker.absent), list(broker.refused)) == ([], [])
    assert broker.ahead_s is None, "nobody speaks here"
    found = await findings(settings, ["coordinator"])
    assert "trinity-bus" in next(finding.found for finding in found if finding.subject == "versions")
    assert [finding.subject for finding in found if finding.level == "error"] == []


async def test_clocks_are_compared_by_what_a_coordinator_says(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = unused(kafka)
    settings = Settings().model_copy(update={"kafka": own})
    monkeypatch.setattr("workers.doctor.checks._HEARD_S", 60.0)
    async with with_topics(own) as bus, bus.producer() as producer:

        async def speak() -> None:
            while True:
                await (await producer.send_raw(COORDINATOR_EVENTS, "coordinator", b"alive"))
                await asyncio.sleep(0.05)

        speaking = asyncio.create_task(speak())
        try:
            broker = await look_at_broker(settings, [])
        finally:
            speaking.cancel()
    assert broker.ahead_s is not None
    assert abs(broker.ahead_s) < 2.0, "one machine has one clock"


async def test_a_broker_that_does_not_answer_is_told() -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9", request_timeout_s=1)
    broker = await look_at_broker(Settings().model_copy(update={"kafka": kafka}), [])
    assert "connection refused" in str(broker.error)


async def ports(settings: Settings, services: list[str]) -> list[str]:
    found = await findings(settings, services)
    return [one.found.partition(" ")[0] for one in found if one.subject == "ports" and one.level == "error"]


async def test_ports_that_another_process_has_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9", request_timeout_s=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in ("CONSOLE__PORT", "EXPLORER__HTTP_PORT", "HEALTH__PORT"):
            monkeypatch.setenv(f"TRINITY_BUS_{name}", str(port))
        monkeypatch.setenv("TRINITY_BUS_TRAINER__WEIGHTS_PORT", f"{port}-{port}")
        settings = Settings().model_copy(update={"kafka": kafka})
        alone = await ports(settings, [])
        assert alone == [f"{name}={port}" for name in ("health.port", "explorer.http_port")]
        both = await ports(settings, ["console", "trainer"])
        assert both == [*alone, f"console.port={port}", f"trainer.weights_port={port}"]
    assert await ports(settings, ["console", "trainer"]) == []
