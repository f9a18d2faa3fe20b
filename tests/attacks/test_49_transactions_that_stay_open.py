"""Somebody's transaction stays open: answers and tasks behind it are late and not lost, and it is named."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from schemas import BatchLifecycleState, BatchRecord, Contribute, ExperienceGroup, ExperiencePiece, Position
from schemas.codec import encode
from schemas.topic import Topic
from schemas.topics import BATCHES, EXPERIENCES, TASKS
from tests.support.fakes.experiences import make_group
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks, trinity_bus
from tests.support.mesh.records import first, record_of, take
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.bus.read import offsets, positions
from trinity_bus.coordination import Uncountable
from workers.coordinator import contributions
from workers.coordinator.contributions import ContributionReader
from workers.trainer.batch_schedule import positions_of

pytestmark = pytest.mark.integration
TOLD = "wait for a transaction that somebody has left open"


class DiedError(Exception):
    """Who had the transaction open is gone."""


@asynccontextmanager
async def left_open(bus: Bus, topic: Topic = EXPERIENCES) -> AsyncIterator[None]:
    """A transaction that has written to every partition of a topic; the broker aborts it at the end."""
    with suppress(DiedError):
        async with bus.producer(transactional_id="stranger") as stranger, stranger.transaction():
            for partition in range(topic.partitions):
                await (await stranger.send_raw(topic, "never", b"never", partition=partition))
            yield
            raise DiedError


async def test_answers_behind_it_are_in_the_manifest_and_are_read_when_it_ends(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(positions, "SETTLE_S", 0.0)
    monkeypatch.setattr(offsets, "HELD_S", 0.0)
    async with (
        mesh.connected() as (bus, producer),
        bus.reader(BATCHES) as batches,
        FakeTrainer(bus).alive(),
        FakeExplorer(bus).alive(),
    ):
        async with left_open(bus):
            with mesh.coordinator():
                await send_tasks(producer, 4)
                ended = await first(batches, BatchRecord, lambda batch: batch.state is BatchLifecycleState.FINALIZED)
            assert (ended.failed_task_count, [entry.status for entry in ended.manifest]) == (0, ["completed"] * 4)
            assert "gone before" not in mesh.log()
            fetching = asyncio.create_task(bus.fetch(EXPERIENCES, positions_of(ended, ended.manifest)))
            await until(lambda: TOLD in caplog.text or fetching.done())
            assert not fetching.done(), fetching.exception()
        groups = [record_of(received) for received in await fetching]
    assert {group.task_id for group in groups} == {f"task-{number}" for number in range(4)}


async def test_a_contribution_behind_it_is_to_be_made_again_and_is_not_called_absent(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributions, "LIMIT_S", 0.5)
    async with mesh.connected() as (bus, producer):
        group = make_group(task_id="made")
        async with left_open(bus):
            at = await (await producer.send_raw(EXPERIENCES, "made", encode(group), partition=0))
            command = contribution(group, at)
            found = await ContributionReader(bus)._look_at(command)
            assert isinstance(found, Uncountable)
            assert (found.error, "transaction" in found.detail) == ("timeout", True)
            # What is answered is answered however slow the broker is.
            monkeypatch.undo()
            beyond = await ContributionReader(bus)._look_at(contribution(group, Position(partition=0, offset=10**6)))
            assert isinstance(beyond, Uncountable)
            assert beyond.error == "beyond_the_log"


async def test_it_is_told_and_no_service_calls_itself_ready(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offsets, "HELD_S", 0.5)
    async with mesh.connected() as (bus, producer), bus.reader(TASKS, start="beginning") as reader:
        async with left_open(bus, TASKS):
            await send_tasks(producer, 20)
            assert await reader.batch(1) == [], "they wait behind the stranger's"
            async with asyncio.timeout(60):
                while await reader.keeps_up():
                    await reader.batch(0.1)
            assert TOLD in caplog.text
        await take(reader, 20)
        async with asyncio.timeout(60):
            while not await reader.keeps_up():
                await reader.batch(0.1)


async def test_status_names_it(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, _), left_open(bus):
        said = await asyncio.to_thread(trinity_bus, mesh.kafka, "status", "--once")
    assert said.returncode == 0, said.stderr
    assert f"! experiences/0: records from 0 on {TOLD}" in " ".join(said.stdout.split())


def contribution(group: ExperienceGroup, at: Position) -> Contribute:
    pieces = [ExperiencePiece(samples=len(group), position=at)]
    return Contribute(
        client=group.explorer, command_id="once", task_id=group.task_id, pieces=pieces, version_min=0, version_max=0
    )
