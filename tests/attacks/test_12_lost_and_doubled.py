"""Attack 12: a trainer's word is lost; two services have one name.

Before: a lost ``StepTrained`` starved the mesh until the trainer was started anew, and a service whose place another
had taken went on for ever, ignored and unaware. Now heartbeats tell of the version that nobody heard of; and who is
superseded is told, and ends with one line.
"""

import asyncio
from pathlib import Path

import pytest

from benchmarks._records import trainer_beat
from schemas import ModelVersion, StepTrained, Superseded, VersionWanted
from schemas.topics import COORDINATOR_EVENTS, TRAINER_EVENTS
from tests.integration.explorer.explorers import LIMIT_S, exploring, fork_server, mesh_of, settings
from tests.integration.training.trainers import Trainer, batches_of, produce, step_is, until
from tests.support.effects import written
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.mesh import unused
from tests.support.mesh.waiting import beside
from tests.support.simulation.harness import Harness, facts
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.coordination import Fact
from trinity_bus.coordination.effects import Effect
from trinity_bus.errors import SupersededError
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runtime.service import first_error
from workers.coordinator.service import Coordinator

__all__ = ["fork_server", "settings"]


# -- the coordinator's decisions -------------------------------------------------------------------------------------


def beat_of_trainer(harness: Harness, version: int, incarnation: str = "t1") -> list[Effect]:
    return harness.event(trainer_beat(version, incarnation, trainer="trainer"))


def asked(commands: list[Effect]) -> list[int]:
    return [command.at_least for command in written(commands, VersionWanted)]


def test_a_heartbeat_tells_of_a_version_that_nobody_has_heard_of() -> None:
    harness = Harness()
    harness.beat(model_version=-1)
    assert asked(beat_of_trainer(harness, -1)) == [], "nothing is published yet"
    assert asked(beat_of_trainer(harness, 0)) == [0], "the first word of an incarnation was lost"
    harness.trained(0)
    harness.synced(0, epoch=1)
    assert asked(beat_of_trainer(harness, 0)) == []
    assert asked(beat_of_trainer(harness, 3)) == [3]
    harness.restart()
    assert asked(beat_of_trainer(harness, 3)) == [3], "until it is heard of, whoever dies"
    commands = harness.trained(3)
    assert [c.version for c in written(commands, ModelVersion)] == [3]
    assert asked(beat_of_trainer(harness, 3)) == []
    assert asked(beat_of_trainer(harness, 0, incarnation="t2")) == [0], "a new incarnation, whose first word was lost"


def test_whose_place_another_has_is_told_at_each_word() -> None:
    harness = Harness()
    harness.beat(incarnation="1")
    assert written(harness.beat(incarnation="2"), Superseded) == []
    for _ in range(2):
        commands = harness.beat(incarnation="1")
        told = Superseded(service="explorer", name="e0", incarnation="1", by="2")
        assert written(commands, Superseded) == [told]
        assert Fact.ZOMBIE_EXPLORER in facts(commands)
    harness.trained(0, incarnation="t1")
    harness.trained(0, incarnation="t2")
    told = Superseded(service="trainer", name="trainer", incarnation="t1", by="t2")
    for commands in (beat_of_trainer(harness, 0, incarnation="t1"), harness.trained(1, incarnation="t1")):
        assert written(commands, Superseded) == [told]
        assert Fact.ZOMBIE_TRAINER in facts(commands)
    assert written(beat_of_trainer(harness, 0, incarnation="t2"), Superseded) == []


# -- the services ----------------------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_of_two_explorers_of_one_name_the_first_ends_with_one_line(
    settings: Settings, fork_server: ForkServer
) -> None:
    async with (
        mesh_of(settings) as mesh,
        Bus(settings.kafka, client_id="coordinator") as bus,
        beside(Coordinator(settings, bus).run()),
        exploring(settings, FakeEngine(), fork_server) as first,
    ):
        incarnation = await mesh.joined()
        async with exploring(settings, FakeEngine(), fork_server) as second:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.wait([first])
            error = first_error(first.exception() or AssertionError())
            assert isinstance(error, SupersededError)
            assert "\n" not in str(error)
            assert "TRINITY_BUS_EXPLORER__NAME" in str(error)
            assert not second.done()
            await mesh.joined(former=incarnation)


@pytest.mark.integration
@pytest.mark.timeout(600)
async def test_a_trainer_says_again_what_nobody_heard_and_ends_when_another_has_its_place(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    """The test plays the coordinator."""
    kafka = unused(kafka)
    trainer = Trainer(kafka, tmp_path / "trainer", write_model(tmp_path / "model"))

    async with Bus(kafka, client_id="test") as bus, bus.producer() as producer:
        await produce(bus, batches_of(1))
        async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
            with trainer.running() as process:
                seen = await until(events, step_is(1), process)
                first = seen[-1]
                await (await producer.send(COORDINATOR_EVENTS, "c", VersionWanted(model=first.model, at_least=1)))
                again = (await until(events, lambda record: isinstance(record, StepTrained), process))[-1]
                assert again == first
                over = Superseded(service="trainer", name=first.trainer, incarnation=first.incarnation, by="another")
                await (await producer.send(COORDINATOR_EVENTS, "c", over))
                assert await asyncio.to_thread(process.wait, 60) == 1
    assert "SupersededError: another trainer of model 'policy' has begun in this namespace" in trainer.log.read_text()
