"""Contributions on a real broker: what a client has made itself is trained on, once, or refused by name."""

import asyncio
from collections import Counter

import pytest

from schemas import ExperienceGroup, ExperiencePiece, Position
from schemas.codec import encode
from schemas.topics import EXPERIENCES
from tests.support.fakes.experiences import make_group
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus import RolloutCoordinator
from trinity_bus.bus import Bus
from trinity_bus.client.channel import CommandChannel
from trinity_bus.client.experiences import Published, publish
from trinity_bus.config import Settings
from trinity_bus.errors import RefusedError

pytestmark = pytest.mark.integration


def payload(task_id: str, version: int = 0) -> bytes:
    return encode(make_group(task_id=task_id, version=version))


async def test_what_a_client_contributes_is_in_a_manifest_once_whatever_the_coordinator_dies_of(mesh: Mesh) -> None:
    made = [f"made-{number}" for number in range(10)]
    async with (
        mesh.connected() as (bus, producer),
        RolloutCoordinator(Settings(kafka=mesh.kafka), bus=bus, name="me") as client,
        FakeExplorer(bus).alive(),
        FakeTrainer(bus).alive() as trainer,
    ):
        # A client gives up where it hears of none for 30 s, and to start one on several busy brokers may take longer:
        # so the next one stands by when one is killed, or is waited for.
        with mesh.coordinator(max_staleness=100) as process:
            await until(lambda: "ready" in mesh.log(1))
            await client.process_experiences([payload(name) for name in made[:3]])
            with mesh.coordinator(max_staleness=100, name="coordinator-1") as successor:
                await until(lambda: "standing by" in mesh.log(2))
                contributing = asyncio.create_task(client.process_experiences([payload(name) for name in made[3:]]))
                await trainer.until_trained(1)
                await asyncio.to_thread(process.kill)
                await contributing
                await asyncio.to_thread(successor.kill)
        with mesh.coordinator(max_staleness=100):
            await until(lambda: "ready" in mesh.log(3))
            with pytest.raises(RefusedError, match="made-0: known_task"):
                await client.process_experiences([payload(made[0])])
            await send_tasks(producer, 6)
            await trainer.until_trained(4)
        entries = [entry for batch in trainer.trained for entry in batch.manifest]
        assert Counter(entry.task_id for entry in entries) == Counter([*made, *(f"task-{n}" for n in range(6))])
        assert {entry.status for entry in entries} == {"completed"}
        contributed = [entry for entry in entries if entry.task_id in made]
        positions = [part.position for entry in contributed for part in entry.parts if part.position is not None]
        groups = [record_of(received) for received in await bus.fetch(EXPERIENCES, positions)]
        assert all(isinstance(group, ExperienceGroup) for group in groups)
        assert [(g.task_id, g.explorer) for g in groups] == [(e.task_id, "me") for e in contributed]


async def test_what_is_not_what_it_is_said_to_be_is_refused_by_name(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer), CommandChannel(bus, producer, name="me") as channel:
        with mesh.coordinator(max_staleness=0):
            await until(lambda: "ready" in mesh.log())
            (mine,) = await _published(bus, payload("a"), "me")
            (others,) = await _published(bus, payload("b"), "somebody")
            place = mine.pieces[0].position
            gone = [ExperiencePiece(samples=2, position=Position(partition=place.partition, offset=10_000))]
            nowhere = [ExperiencePiece(samples=2, position=Position(partition=99, offset=0))]
            (new,) = await _published(bus, payload("new", version=3), "me")
            asked: list[tuple[Published, str | None]] = [
                (Published("a", gone, 0, 0), "beyond_the_log"),
                (Published("a", nowhere, 0, 0), "beyond_the_log"),
                (others, "wrong_record"),
                (Published("b", mine.pieces, 0, 0), "wrong_record"),
                (Published("a", mine.pieces, 0, 1), "wrong_record"),
                (new, "unknown_version"),
                (mine, None),
                (mine, "known_task"),
            ]
            for published, error in asked:
                assert (await channel.contribute(published)).error == error
            async with FakeTrainer(bus).alive() as trainer, FakeExplorer(bus).alive():
                await send_tasks(producer, 3)
                await trainer.until_trained(1)
                # Batch 1 has its place: the next needs version 1.
                (late,) = await _published(bus, payload("late"), "me")
                assert (await channel.contribute(late)).error == "too_stale"
        assert Counter(e.task_id for e in trainer.trained[0].manifest) == Counter(["a", "task-0", "task-1", "task-2"])


async def _published(bus: Bus, one: bytes, author: str) -> list[Published]:
    async with bus.producer() as producer:
        _, published = await publish(producer, [one], author=author, incarnation="life", max_bytes=1 << 20)
        return published
