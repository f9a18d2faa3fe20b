"""Topics that were made anew, or lost their last records: it is found, said, and resolved by the rule."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from schemas import StepTrained, Task
from schemas.topic import Topic
from schemas.topics import BATCHES, COORDINATOR_INPUTS, RESULTS, TASKS, TRAINER_EVENTS
from tests.integration.training.trainers import batches_of, produce
from tests.support.fakes.mesh_records import task_result
from tests.support.fakes.tiny_trainer import write_model
from tests.support.fakes.workers import WAIT_S, FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks, trinity_bus, unused
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import beside, until
from tests.support.sampled import at_night
from trinity_bus.bus import Bus, LogIdentity, Producer, Reader
from trinity_bus.bus.client.connection import administrator
from trinity_bus.config import KafkaSettings, MeshSettings, Settings, TasksetSettings, TrainerSettings
from trinity_bus.health.process import readings
from workers.taskset.dataset import load
from workers.taskset.service import Taskset
from workers.trainer import service

pytestmark = pytest.mark.integration


async def make_anew(settings: KafkaSettings, *topics: Topic) -> None:
    """Deletes topics, and makes empty ones."""
    names = [topic.full_name(settings.namespace) for topic in topics]
    async with administrator(settings, "test") as admin:
        await admin.delete_topics(names)
        async with asyncio.timeout(WAIT_S):
            while set(names) & set(await admin.list_topics()):  # noqa: ASYNC110 - the broker deletes
                await asyncio.sleep(0.1)
    async with Bus(settings, client_id="test") as bus:
        await bus.ensure_topics(topics)


@pytest.mark.parametrize("decision", [None, "end", at_night("beginning")])
async def test_topics_that_were_made_anew_do_not_stop_the_mesh(mesh: Mesh, decision: str | None) -> None:
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
                    done = await asyncio.to_thread(trinity_bus, mesh.kafka, "positions", "resolve", "--tasks", decision)
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
    await make_anew(mesh.kafka, *COORDINATOR_INPUTS)
    await second()


async def test_a_taskset_goes_on_when_answers_were_deleted_or_their_topic_made_anew(
    mesh: Mesh, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[object, ...]] = []
    monkeypatch.setattr("workers.taskset.service.RECORDS_LOST.add", lambda *lost: counted.append(lost))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"task_id": f"r-{n}", "workflow": "math", "prompt": "1"}) + "\n" for n in "ab"))
    settings = Settings(kafka=mesh.kafka, taskset=TasksetSettings(path=rows, order="sequential", ahead=2))
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def taskset(bus: Bus) -> AsyncIterator[asyncio.Task[None]]:
        async with beside(Taskset(settings, bus, load(rows, order="sequential")).run()) as running:
            yield running

    async def produced(tasks: Reader, count: int, running: asyncio.Task[None]) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(seen) < count:
                assert not running.done()
                seen.extend(record_of(received).task_id for received in await tasks.batch(1))

    async def answer(producer: Producer, task_id: str) -> None:
        await (await producer.send(RESULTS, task_id, task_result(task_id), partition=0))

    async with mesh.connected() as (bus, producer), bus.reader(TASKS, start="beginning") as tasks:
        async with taskset(bus) as running:
            await produced(tasks, 2, running)
            for task_id in tuple(seen):
                await answer(producer, task_id)
            # How far it has read is committed with what it produces next.
            await produced(tasks, 4, running)
        await answer(producer, seen[2])
        await bus.delete_before({("results", 0): 3})
        async with taskset(bus) as running:
            await produced(tasks, 6, running)
        assert counted == [(1, {"messaging.destination.template": "results"})]
        await make_anew(mesh.kafka, RESULTS)
        async with taskset(bus) as running:
            await produced(tasks, 8, running)
        assert "results/0 ends at 0, and 3 was to be read next: answers may be lost" in caplog.text
        assert len(counted) == 1, "how many were lost nobody can tell"
    assert sorted(seen) == sorted(f"taskset-0/{epoch}/r-{row}" for epoch in range(4) for row in "ab")


async def test_a_trainer_goes_on_when_batches_were_lost_and_passes_over_what_it_has_trained(
    kafka: KafkaSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a log that has lost its last records; another topic id would be another run, see attack 10.
    async def identity(*_: object) -> LogIdentity:
        return LogIdentity("cluster", "topic")

    monkeypatch.setattr(Bus, "identity", identity)
    # A process sets it up once, and this one is of all tests.
    monkeypatch.setattr(service, "setup_telemetry", Mock())
    ours = unused(kafka)
    settings = Settings(
        kafka=ours,
        mesh=MeshSettings(model_path=str(write_model(tmp_path / "model"))),
        trainer=TrainerSettings(engine="torch", checkpoint_dir=tmp_path / "checkpoints", threads=1, heartbeat_s=0.2),
    )

    async def train(bus: Bus, step: int) -> list[str | None]:
        """Runs a trainer until it has trained a step; the batches of which it says so."""
        async with bus.reader(TRAINER_EVENTS, start="end") as events:
            running = asyncio.create_task(service.run(settings))
            told: list[StepTrained] = []
            try:
                async with asyncio.timeout(WAIT_S):
                    while not told or told[-1].step < step:
                        assert not running.done()
                        found = [received.record for received in await events.batch(1)]
                        told += [record for record in found if isinstance(record, StepTrained)]
                    # While it waits for the next it is not ready where that stands still.
                    while not (await readings()).get("the batches"):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.05)
            finally:
                running.cancel()
                await asyncio.wait([running])
            return [one.batch_id for one in told]

    batches = batches_of(4)
    async with Bus(ours, client_id="test") as bus:
        await produce(bus, batches[:3])
        assert (await train(bus, 3))[-1] == "batch-3"
        await make_anew(ours, BATCHES)
        await produce(bus, batches[2:], first=3)
        assert await train(bus, 4) == [None, "batch-4"], "the first is where it goes on"
    assert "batches ends at 6, and the checkpoint would go on at 9" in caplog.text
