"""Attack 15: a managed Kafka whose records are small, such as 8 MiB.

Before: topics needed records of 64 MiB, so that the mesh did not start there; and a group that was larger than the
broker's limit was a failed attempt, again and again. Now ``mesh.max_record_mib`` says what the cluster takes, and such
a group is several records, which a manifest names together. Here the brokers take 5 MiB.
"""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from schemas import BatchRecord, ExperienceGroup, ManifestEntry, Task
from schemas.topics import EXPERIENCES, TASKS, TOPICS
from tests.integration.explorer.explorers import Mesh as PlayedMesh
from tests.integration.explorer.explorers import exploring, fork_server, mesh_of, process_of, settings
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.workers import FakeTrainer
from tests.support.mesh.mesh import described
from tests.support.mesh.waiting import beside, until
from trinity_bus.bus import Bus
from trinity_bus.config import CoordinatorSettings, Settings
from trinity_bus.runners.fork_server import ForkServer
from workers.coordinator.service import Coordinator
from workers.trainer.batch_schedule import entries_to_train, groups_of, positions_of

__all__ = ["fork_server", "settings"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RECORD_MIB = 5
RUNS = 12
TOKENS = 150_000
"""Of each answer: a group of so many runs is 14 MiB."""


@asynccontextmanager
async def coordinated(settings: Settings) -> AsyncIterator[tuple[Settings, PlayedMesh, FakeTrainer]]:
    """A coordinator and a trainer on brokers with small records; the settings that say so."""
    values: dict[str, Any] = {"batch_size": 1, "group_size": RUNS, "max_attempts": 2, "tick_s": 0.05}
    settings = settings.model_copy(
        update={
            "kafka": settings.kafka.model_copy(update={"max_record_mib": RECORD_MIB}),
            "coordinator": CoordinatorSettings(**values, max_record_mib=RECORD_MIB),
        }
    )
    async with (
        mesh_of(settings) as mesh,
        Bus(settings.kafka, client_id="coordinator") as bus,
        beside(Coordinator(settings, bus).run()),
        FakeTrainer(mesh.bus).alive() as trainer,
    ):
        yield settings, mesh, trainer


async def ask(mesh: PlayedMesh, **fields: Any) -> None:
    task = Task(task_id="large", workflow="math", prompt="6*7=", answer="42", timeout_s=60, **fields)
    await (await mesh._producer.send(TASKS, task.task_id, task))


async def read(mesh: PlayedMesh, batch: BatchRecord) -> list[ExperienceGroup]:
    """What a trainer trains on."""
    entries = entries_to_train(batch)
    return groups_of(batch, entries, await mesh.bus.fetch(EXPERIENCES, positions_of(batch, entries)))


def assert_whole(group: ExperienceGroup) -> None:
    assert group.run_ids.tolist() == list(range(RUNS))
    for sample in group.samples():
        response = sample.tokens[sample.prompt_length :]
        assert len(response) == TOKENS
        assert set(response.tolist()) == {ord("4")}
        assert len(sample.logprobs) == TOKENS
        assert bool(sample.mask.all())


def entry_of(trainer: FakeTrainer) -> tuple[BatchRecord, ManifestEntry]:
    (batch,) = trainer.trained
    (entry,) = batch.manifest
    return batch, entry


async def test_a_group_that_is_larger_than_a_record_is_trained_on_whole(
    settings: Settings, fork_server: ForkServer
) -> None:
    async with coordinated(settings) as (small, mesh, trainer):
        for topic in TOPICS:
            _, configs = await described(small.kafka, topic.full_name(small.kafka.namespace))
            assert int(configs["max.message.bytes"]) <= RECORD_MIB << 20
        async with AIOKafkaProducer(
            bootstrap_servers=small.kafka.bootstrap_servers, max_request_size=64 << 20
        ) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(EXPERIENCES.full_name(small.kafka.namespace), bytes(6 << 20), key=b"k")
        async with exploring(small, FakeEngine(answer="4" * TOKENS), fork_server):
            await ask(mesh)
            await trainer.until_trained(1)
        batch, entry = entry_of(trainer)
        assert entry.status == "completed"
        assert [part.attempt for part in entry.parts] == [1, 1, 1]
        assert [part.samples for part in entry.parts] == [4, 4, 4]
        (group,) = await read(mesh, batch)
        assert_whole(group)
        assert len(await mesh.experiences()) == 3


async def test_a_sample_that_is_larger_than_a_record_is_a_failure_with_its_reason(
    settings: Settings, fork_server: ForkServer
) -> None:
    async with coordinated(settings) as (small, mesh, trainer):
        async with exploring(small, FakeEngine(answer="4" * 700_000), fork_server) as explorer:
            await ask(mesh, repeat_times=2)
            await trainer.until_trained(1)
            assert not explorer.done()
        _, entry = entry_of(trainer)
        assert (entry.status, entry.parts) == ("failed", [])
        assert entry.error is not None
        assert entry.error.startswith("EncodeError: run 0: a sample of 5,6")
        assert await mesh.experiences() == []


async def test_an_explorer_that_is_killed_amid_the_pieces_leaves_nothing_half_trained_and_nothing_twice(
    settings: Settings, fork_server: ForkServer
) -> None:
    async with coordinated(settings) as (small, mesh, trainer):
        variables = {"ANSWER": "4", "TIMES": str(TOKENS), "TRINITY_BUS_MESH__MAX_RECORD_MIB": str(RECORD_MIB)}
        async with process_of(small, "dies", **variables) as process:
            await ask(mesh)
            await until(lambda: process.poll() is not None)
            assert process.poll() == -signal.SIGKILL
        (orphan,) = await mesh.experiences()
        assert (orphan.attempt, len(orphan)) == (1, 4)
        assert trainer.trained == []
        async with exploring(small, FakeEngine(answer="4" * TOKENS), fork_server):
            await until(lambda: bool(trainer.trained))
        batch, entry = entry_of(trainer)
        assert [(part.attempt, part.samples) for part in entry.parts] == [(2, 4)] * 3
        (group,) = await read(mesh, batch)
        assert_whole(group)
