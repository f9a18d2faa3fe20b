"""A broker that answers nobody for a while: the coordinator must not take everybody's silence for their death."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, own_broker, send_tasks
from tests.support.mesh.waiting import until
from trinity_bus.broker import EmbeddedBroker

pytestmark = pytest.mark.integration

EXPLORER_TIMEOUT_S = 3
SILENCE_S = 8  # well over what the coordinator waits for an explorer, and below the client's own limits


async def test_explorers_outlive_a_broker_that_is_silent_for_longer_than_they_may_be(tmp_path: Path) -> None:
    async def main(broker: EmbeddedBroker) -> None:
        mesh = Mesh(broker.kafka_settings(), tmp_path)
        async with mesh.connected() as (bus, producer):
            with mesh.coordinator(explorer_timeout_s=EXPLORER_TIMEOUT_S):
                async with FakeExplorer(bus).alive(), FakeTrainer(bus).alive() as trainer:
                    await send_tasks(producer, 4)
                    await trainer.until_trained(1)
                    assert broker.pid is not None
                    os.kill(broker.pid, signal.SIGSTOP)
                    try:
                        # The length of the silence is what is tested.
                        await asyncio.sleep(SILENCE_S)
                    finally:
                        os.kill(broker.pid, signal.SIGCONT)
                    await send_tasks(producer, 4, "later")
                    await trainer.until_trained(2)
                    await until(lambda: "joined" in mesh.log())
        assert "lost" not in mesh.log(), mesh.log()

    with EmbeddedBroker(own_broker(tmp_path / "broker")) as broker:
        await main(broker)
