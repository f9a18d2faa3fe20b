"""Attack 12: a trainer's word is lost; two services have one name.

Before: a lost ``StepTrained`` starved the mesh until the trainer was started anew, and a service whose place another
had taken went on for ever, ignored and unaware. Now heartbeats tell of the version that nobody heard of; and who is
superseded is told, and ends with one line.
"""

import asyncio
import subprocess
import uuid
from pathlib import Path

import pytest

from schemas import StepTrained, Superseded, TrainerHeartbeat, VersionWanted
from schemas.topics import COORDINATOR_EVENTS, TRAINER_EVENTS
from tests.integration.explorer.test_explorer import LIMIT_S, exploring, mesh_of, nursery, settings
from tests.integration.training.trainers import Trainer, batches_of, produce, step_is, until
from tests.support.fake_engine import FakeEngine
from tests.support.story import Story, facts
from tests.support.training import write_model
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.coordination import Announce, Ask, Dismiss, Fact
from trinity_bus.coordination.commands import Command
from trinity_bus.errors import SupersededError
from trinity_bus.runtime.service import first_error
from workers.coordinator.service import Coordinator
from workers.explorer.runners.nursery import Nursery

__all__ = ["nursery", "settings"]


# -- the coordinator's decisions -------------------------------------------------------------------------------------


def beat_of_trainer(story: Story, version: int, life: str = "t1") -> list[Command]:
    return story.event(
        TrainerHeartbeat(
            trainer="trainer",
            incarnation=life,
            state="ready",
            model="policy",
            step=max(version, 0),
            version=version,
            master_address="127.0.0.1",
            master_port=1,
        )
    )


def asked(commands: list[Command]) -> list[int]:
    return [command.record.at_least for command in commands if isinstance(command, Ask)]


def test_a_heartbeat_tells_of_a_version_that_nobody_has_heard_of() -> None:
    story = Story()
    story.beat(version=-1)
    assert asked(beat_of_trainer(story, -1)) == [], "nothing is published yet"
    assert asked(beat_of_trainer(story, 0)) == [0], "the first word of a life was lost"
    story.trained(0)
    assert asked(beat_of_trainer(story, 0)) == []
    assert asked(beat_of_trainer(story, 3)) == [3]
    story.restart()
    assert asked(beat_of_trainer(story, 3)) == [3], "until it is heard of, whoever dies"
    commands = story.trained(3)
    assert [c.record.version for c in commands if isinstance(c, Announce)] == [3]
    assert asked(beat_of_trainer(story, 3)) == []
    assert asked(beat_of_trainer(story, 0, life="t2")) == [0], "a new life, whose first word was lost"


def test_whose_place_another_has_is_told_at_each_word() -> None:
    story = Story()
    story.beat(life="1")
    assert [c for c in story.beat(life="2") if isinstance(c, Dismiss)] == []
    for _ in range(2):
        commands = story.beat(life="1")
        told = Superseded(service="explorer", name="e0", incarnation="1", by="2")
        assert [c.record for c in commands if isinstance(c, Dismiss)] == [told]
        assert Fact.ZOMBIE_EXPLORER in facts(commands)
    story.trained(0, life="t1")
    story.trained(0, life="t2")
    told = Superseded(service="trainer", name="trainer", incarnation="t1", by="t2")
    for commands in (beat_of_trainer(story, 0, life="t1"), story.trained(1, life="t1")):
        assert [c.record for c in commands if isinstance(c, Dismiss)] == [told]
        assert Fact.ZOMBIE_TRAINER in facts(commands)
    assert [c for c in beat_of_trainer(story, 0, life="t2") if isinstance(c, Dismiss)] == []


# -- the services ----------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_of_two_explorers_of_one_name_the_first_ends_with_one_line(settings: Settings, nursery: Nursery) -> None:
    async def main() -> None:
        async with mesh_of(settings) as mesh, Bus(settings.kafka, client_id="coordinator") as bus:
            coordinating = asyncio.create_task(Coordinator(settings, bus).run())
            try:
                async with exploring(settings, FakeEngine(), nursery) as first:
                    life = await mesh.joined()
                    async with exploring(settings, FakeEngine(), nursery) as second:
                        async with asyncio.timeout(LIMIT_S):
                            await asyncio.wait([first])
                        error = first_error(first.exception() or AssertionError())
                        assert isinstance(error, SupersededError)
                        assert "\n" not in str(error)
                        assert "TRINITY_BUS_EXPLORER__NAME" in str(error)
                        assert not second.done()
                        await mesh.joined(former=life)
            finally:
                coordinating.cancel()
                await asyncio.wait([coordinating])

    asyncio.run(main())


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_trainer_says_again_what_nobody_heard_and_ends_when_another_has_its_place(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    """The test plays the coordinator."""
    kafka = kafka.model_copy(update={"namespace": f"lost-{uuid.uuid4().hex[:8]}"})
    trainer = Trainer(kafka, tmp_path / "trainer", write_model(tmp_path / "model"))

    async def scenario() -> subprocess.Popen[bytes]:
        async with Bus(kafka, client_id="test") as bus, bus.producer() as producer:
            await produce(bus, batches_of(1))
            async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
                with trainer.running() as process:
                    seen = await until(events, step_is(1), process)
                    first = seen[-1]
                    await (await producer.send(COORDINATOR_EVENTS, "c", VersionWanted(model=first.model, at_least=1)))
                    again = (await until(events, lambda record: isinstance(record, StepTrained), process))[-1]
                    assert again == first
                    over = Superseded(
                        service="trainer", name=first.trainer, incarnation=first.incarnation, by="another"
                    )
                    await (await producer.send(COORDINATOR_EVENTS, "c", over))
                    assert await asyncio.to_thread(process.wait, 60) != 0
                    return process

    asyncio.run(scenario())
    assert "SupersededError: another trainer of model 'policy' has begun in this namespace" in trainer.log.read_text()
