"""Pools on a real broker: the coordinator's process, fake explorers, and no trainer."""

import io
import re

import pytest
from rich.console import Console

from schemas import BatchLifecycleState, Task
from schemas.topics import EXPERIENCES, TASKS
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.view import MeshState, follow
from workers.watch import mesh as picture

pytestmark = pytest.mark.integration


def text_of(view: MeshState) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(picture(view))
    return console.export_text()


async def test_explorers_without_a_trainer_get_work_and_a_trainer_that_comes_later_finds_it(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer):
        with mesh.coordinator(max_staleness=0):
            async with FakeExplorer(bus, fixed=True).alive():
                await send_tasks(producer, 12)
                async with follow(bus) as view:
                    await until(lambda: view.state.states[BatchLifecycleState.FINALIZED] == 3)
        # The explorer is gone, and so is the coordinator: a trainer trains on what the log holds.
        async with FakeTrainer(bus).alive() as trainer:
            await trainer.until_trained(3)
        assert [batch.sequence for batch in trainer.trained] == [1, 2, 3]
        entries = [entry for batch in trainer.trained for entry in batch.manifest]
        assert {entry.status for entry in entries} == {"completed"}
        positions = [part.position for entry in entries for part in entry.parts if part.position is not None]
        groups = [record_of(received) for received in await bus.fetch(EXPERIENCES, positions)]
        assert sorted(group.task_id for group in groups) == sorted(f"task-{number}" for number in range(12))


async def test_a_pool_answers_its_tasks_and_one_that_nobody_serves_is_told_of(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer):
        own, judge = FakeExplorer(bus, "own"), FakeExplorer(bus, "judge-0", pool="judge", fixed=True)
        with mesh.coordinator(batch_size=2):
            async with own.alive(), FakeTrainer(bus).alive() as trainer, follow(bus) as view:
                await producer.send(TASKS, "a", Task(task_id="a", workflow="math", prompt="1"))
                await producer.send(TASKS, "b", Task(task_id="b", workflow="math", prompt="1", pool="judge"))
                await producer.flush()
                await until(lambda: view.state.coordinator is not None and bool(view.state.coordinator.unserved))
                assert "! no explorer serves pool judge: 1 part of a task waits" in text_of(view.state)
                async with judge.alive():
                    await trainer.until_trained(1)
                    await until(lambda: view.state.coordinator is not None and not view.state.coordinator.unserved)
                    # The coordinator may be heard before the explorer of which it says so.
                    await until(lambda: "judge-0" in view.state.explorers)
                    shown = text_of(view.state)
        assert [record_of(order).task.task_id for order in own.orders] == ["a"]
        assert [(record_of(order).task.task_id, record_of(order).min_version) for order in judge.orders] == [("b", 0)]
        assert re.search(r"judge-0 .*judge .*ready .*fixed", shown)
        (batch,) = trainer.trained
        assert {(entry.task_id, entry.version_min) for entry in batch.manifest} == {("a", 0), ("b", -1)}
