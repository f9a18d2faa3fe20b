"""Topics that were made anew, or lost their last records: it is found, said, and resolved by the rule."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from schemas import Task
from schemas.topics import COORDINATOR_INPUTS, TASKS
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings

pytestmark = pytest.mark.integration


async def make_anew(settings: KafkaSettings) -> None:
    """Deletes the coordinator's inputs, and makes empty ones."""
    names = [topic.full_name(settings.namespace) for topic in COORDINATOR_INPUTS]
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    await admin.start()
    try:
        await admin.delete_topics(names)
        async with asyncio.timeout(30):
            while set(names) & set(await admin.list_topics()):  # noqa: ASYNC110 - the broker deletes
                await asyncio.sleep(0.1)
    finally:
        await admin.close()
    async with Bus(settings, client_id="test") as bus:
        await bus.ensure_topics()


@pytest.mark.parametrize("decision", [None, "beginning", "end"])
async def test_topics_that_were_made_anew_do_not_stop_the_mesh(
    kafka: KafkaSettings, tmp_path: Path, decision: str | None
) -> None:
    mesh = Mesh(kafka, tmp_path)
    # With nothing remembered the rule cannot tell, and the operator has to.
    settings: dict[str, Any] = {"batch_size": 1, "dedup_window": 100 if decision is None else 1}

    async def second() -> None:
        async with mesh.connected() as (bus, producer):
            for number in range(2):
                task = Task(task_id=f"new-{number}", workflow="math", prompt="1")
                await producer.send(TASKS, task.task_id, task, partition=0)
            await producer.flush()
            explorer = FakeExplorer(bus)

            def ordered() -> set[str]:
                return {record_of(order).task.task_id for order in explorer.orders}

            with mesh.coordinator(**settings) as process:
                if decision is not None:
                    await until(lambda: "positions resolve --tasks beginning|end" in mesh.log(2))
                    command = [sys.executable, "-m", "workers.cli.app", "positions", "resolve", "--tasks", decision]
                    env = {
                        "TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS": str(mesh.kafka.bootstrap_servers),
                        "TRINITY_BUS_MESH__NAMESPACE": mesh.kafka.namespace,
                    }
                    done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True)
                    assert done.returncode == 0, done.stderr
                    assert "tasks/0 ends at 2, and 6 was to be read next: reading goes on at" in done.stdout
                await until(lambda: "ready" in mesh.log(2))
                async with explorer.alive("life-2"), FakeTrainer(bus).alive():
                    await send_tasks(producer, 2, "later")
                    await until(lambda: {"later-0", "later-1"} <= ordered())
                    if decision != "end":
                        await until(lambda: {"new-0", "new-1"} <= ordered())
                assert process.poll() is None
            if decision == "end":
                assert not ordered() & {"new-0", "new-1"}
            assert "records were lost, or the topic was made anew" in mesh.log(2) or decision is not None

    async with mesh.connected() as (bus, producer):
        explorer = FakeExplorer(bus)
        async with explorer.alive(), FakeTrainer(bus).alive() as trainer:
            with mesh.coordinator(**settings):
                for number in range(6):
                    task = Task(task_id=f"old-{number}", workflow="math", prompt="1")
                    await producer.send(TASKS, task.task_id, task, partition=0)
                await producer.flush()
                await trainer.until_trained(6)
    await make_anew(mesh.kafka)
    await second()
