"""A service that has read nothing for longer than it should is not ready: a taskset behind a stranger's transaction."""

import asyncio
import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from schemas.topics import RESULTS
from tests.support.mesh.mesh import unused
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.probe import probe
from trinity_bus.bus import Bus
from trinity_bus.bus.read import offsets
from trinity_bus.config import HealthSettings, KafkaSettings, Settings, TasksetSettings
from trinity_bus.health.process import serving
from workers.taskset.dataset import load
from workers.taskset.service import Taskset

pytestmark = pytest.mark.integration


async def answered(port: int, status: int, why: str, service: asyncio.Task[None]) -> None:
    told = (0, "")
    async with asyncio.timeout(120):
        while told[0] != status or why not in told[1]:
            assert not service.done()
            told = await asyncio.to_thread(probe, port)
            await asyncio.sleep(0.05)


async def test_a_taskset_whose_answers_stand_still_is_not_ready_until_they_move(
    kafka: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "HELD_S", 0.2)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"task_id": "a", "workflow": "math", "prompt": "1 + 1", "answer": "2"}) + "\n")
    [port] = quiet_ports(1)
    settings = Settings(
        kafka=unused(kafka),
        taskset=TasksetSettings(path=rows, ahead=1),
        health=HealthSettings(port=port, unread_s=1),
    )
    name = RESULTS.full_name(settings.kafka.namespace)
    stranger = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"{name}.stranger")
    async with Bus(settings.kafka, client_id="taskset") as bus, serving(settings.health, settings.kafka):
        await bus.ensure_topics()
        taskset = Taskset(settings, bus, load(rows))
        service = asyncio.create_task(taskset.run())
        try:
            await answered(port, 200, "ready", service)
            await stranger.start()
            await stranger.begin_transaction()
            await stranger.send_and_wait(name, b"{}", partition=0)
            await answered(port, 503, "nothing was read of the answers", service)
            await stranger.abort_transaction()
            await answered(port, 200, "ready", service)
        finally:
            await stranger.stop()
            service.cancel()
            await asyncio.wait([service])
