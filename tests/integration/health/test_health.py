"""Health of a real process: its broker is taken away, its event loop is wedged."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.mesh.mesh import environment, own_broker, unused
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.probe import probe
from tests.support.mesh.waiting import wait_until
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.process import Child, tail

pytestmark = pytest.mark.integration
LIMIT_S = 120.0

WEDGED = """
import asyncio, signal, sys, time
from trinity_bus.config import Settings
from trinity_bus.health.process import mark_ready, serving

async def main():
    settings = Settings()
    # Before anything answers: without its handler the signal would end the process.
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, time.sleep, 600)
    async with serving(settings.health, settings.kafka):
        mark_ready()
        await asyncio.sleep(600)

asyncio.run(main())
"""


def service(kafka: KafkaSettings, port: int, command: list[str], output: Path, **settings: object) -> Child:
    env = environment(kafka, health__port=port, **settings)
    return Child([sys.executable, *command], env=env, output=output)


def until_answered(child: Child, port: int, path: str, answer: int, log: Path) -> None:
    """Waits for an answer, as long as the process lives."""
    wait_until(lambda: probe(port, path)[0] == answer or child.poll() is not None, f"{answer} on {path}", LIMIT_S)
    assert child.poll() is None, tail(log)


def test_a_lost_broker_fails_readiness_only(tmp_path: Path) -> None:
    [port], log = quiet_ports(1), tmp_path / "log"
    with EmbeddedBroker(own_broker(tmp_path / "broker")) as broker:
        kafka = broker.kafka_settings(KafkaSettings())
        with service(kafka, port, ["-c", WEDGED], log) as child:
            until_answered(child, port, "/readyz", 200, log)
            broker.stop()
            until_answered(child, port, "/readyz", 503, log)
            assert probe(port, "/livez")[0] == 200


def test_a_wedged_loop_fails_liveness(kafka: KafkaSettings, tmp_path: Path) -> None:
    [port], log = quiet_ports(1), tmp_path / "log"
    with service(kafka, port, ["-c", WEDGED], log, health__wedged_s=1) as child:
        until_answered(child, port, "/readyz", 200, log)
        os.kill(child.pid, signal.SIGUSR1)
        until_answered(child, port, "/livez", 503, log)
        assert probe(port)[0] == 503


def test_a_coordinator_becomes_ready(kafka: KafkaSettings, tmp_path: Path) -> None:
    [port], log = quiet_ports(1), tmp_path / "log"
    command = ["-W", "error", "-m", "workers.cli.app", "run", "coordinator"]
    with service(unused(kafka), port, command, log) as child:
        until_answered(child, port, "/readyz", 200, log)
