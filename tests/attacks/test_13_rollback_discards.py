"""Attack 13: a lineage has diverged, and an operator goes back to an older checkpoint.

Before: explorers kept the newer, spoiled weights until the trainer had caught up with them, on the same batches, to the
same end. Now a rollback that discards has explorers go back at once, and the batches of the ended lineage are passed
over; the same after a SIGKILL anywhere.
"""

import asyncio
import subprocess
from pathlib import Path

import pytest

from benchmarks._records import step_trained
from schemas import (
    ModelVersion,
    PublishVersion,
    RollBack,
    Rollback,
    StepTrained,
    VersionRefused,
    VersionWanted,
)
from schemas.topics import COORDINATOR_EVENTS, MODEL_VERSIONS, TRAINER_EVENTS
from tests.integration.training.trainers import Trainer, batches_of, produce, step_is, trained, until
from tests.support.effects import written
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.mesh import trinity_bus, unused, with_topics
from tests.support.mesh.records import first
from tests.support.mesh.waiting import beside
from tests.support.simulation.harness import Harness, cancels, dispatches, facts, replies
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.coordination import Fact
from trinity_bus.coordination.effects import Effect
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.errors import CheckpointError
from workers.coordinator.service import Coordinator

TO_ONE = Rollback(to=1, through=2, reason="it diverged")


# -- the coordinator's decisions -------------------------------------------------------------------------------------


def announced(commands: list[Effect]) -> list[ModelVersion]:
    return written(commands, ModelVersion)


def asked(commands: list[Effect]) -> list[VersionWanted]:
    return written(commands, VersionWanted)


def diverged() -> Harness:
    """Version 2 is served, batches 1 and 2 are trained on; batch 3 runs."""
    harness = Harness(batch_size=1, group_size=2)
    harness.beat(model_version=-1)
    for step in range(3):
        harness.trained(step)
        harness.synced(step, epoch=1)
        if step < 2:
            harness.task(f"t{step}")
            harness.finished(f"t{step}", batch_id=f"train-{step + 1:06d}", version_min=step, version_max=step)
    assert len(dispatches(harness.task("t2"))) == 1
    assert harness.machine.ledger.counters.finalized == 2
    return harness


def roll_back(harness: Harness, to: int, command_id: str = "1", model: str = "policy") -> list[Effect]:
    return harness.command(
        RollBack(client="operator", command_id=command_id, model=model, version=to, reason="it diverged")
    )


def test_explorers_go_back_at_once_and_nothing_is_drawn_with_what_was_discarded() -> None:
    harness = diverged()
    commands = roll_back(harness, 1)
    assert asked(commands) == [VersionWanted(model="policy", rollback=TO_ONE)]
    assert [cancel.task_id for cancel in cancels(commands)] == ["t2"]
    assert dispatches(commands) == [] == dispatches(harness.wait(2)), "nothing is handed out meanwhile"
    assert Fact.LATE_RESULT in facts(harness.finished("t2", batch_id="train-000003", version_min=2, version_max=2))
    harness.restart()
    # Another incarnation, killed before it could begin the rollback: it is asked again.
    assert asked(harness.trained(2, incarnation="t2")) == [VersionWanted(model="policy", rollback=TO_ONE)]

    commands = harness.trained(1, incarnation="t3", rollback=TO_ONE)
    assert [(version.version, len(version.members)) for version in announced(commands)] == [(1, 1)]
    (reply,) = replies(commands)
    assert (reply.command_id, reply.error, reply.detail) == ("1", None, "batches 2 to 2 are passed over")
    assert dispatches(commands + harness.beat(model_version=2)) == [], "what it serves is void, whatever it says"
    harness.restart()
    assert dispatches(harness.beat(model_version=2)) == []
    epoch = announced(commands)[0].epoch
    # An answer to a round of the ended lineage that comes late makes nothing valid.
    harness.synced(2, epoch=1)
    assert harness.machine.fleet.explorers["e0"].version == -1
    harness.synced(1, epoch)
    assert harness.machine.fleet.explorers["e0"].version == 1
    assert dispatches(harness.wait(1)) == [], "batch 3 needs version 2"
    # The new version 2 is not the old one.
    commands = harness.trained(2, incarnation="t3", rollback=TO_ONE, batch_id="train-000002")
    assert dispatches(commands) == []
    assert [version.version for version in announced(commands)] == [2]
    (dispatch,) = dispatches(harness.synced(2, announced(commands)[0].epoch))
    assert (dispatch.task.task_id, dispatch.attempt) == ("t2", 2)
    harness.finished("t2", attempt=2, batch_id="train-000003", version_min=2, version_max=2)
    assert harness.machine.ledger.counters.finalized == 3


def test_what_cannot_be_had_leaves_all_as_it_was() -> None:
    harness = diverged()
    assert [reply.error for reply in replies(roll_back(harness, 7))] == ["unknown_version"]
    assert [reply.error for reply in replies(roll_back(harness, 1, "2", model="other"))] == ["unknown_model"]
    roll_back(harness, 1, "3")
    publish = PublishVersion(client="operator", command_id="4", model="policy", version=0)
    assert [reply.error for reply in replies(harness.command(publish))] == ["invalid"]
    refused = VersionRefused(
        trainer="trainer", incarnation="t1", model="policy", version=1, reason="gone", available=[2]
    )
    commands = harness.event(refused)
    assert [(reply.command_id, reply.error) for reply in replies(commands)] == [("3", "unknown_version")]
    # Handed out again, and no try was lost.
    assert [(d.task.task_id, d.attempt) for d in dispatches(commands)] == [("t2", 2)]


def test_a_trainer_that_is_slow_is_waited_for() -> None:
    harness = diverged()
    roll_back(harness, 1)
    late: list[Effect] = []
    for _ in range(650):
        late += harness.wait(1)
        harness.beat(model_version=2)
    assert [reply.error for reply in replies(late)] == ["timeout"]
    assert [version.version for version in announced(harness.trained(1, incarnation="t2", rollback=TO_ONE))] == [1]


def test_one_that_is_taken_back_and_done_all_the_same_leaves_no_discarded_weights_in_use() -> None:
    """The trainer had begun it already."""
    harness = diverged()
    roll_back(harness, 1)
    latest = PublishVersion(client="operator", command_id="2", model="policy")
    commands = harness.command(latest)
    assert [(reply.command_id, reply.error) for reply in replies(commands)] == [("1", "invalid"), ("2", None)]
    assert [dispatch.task.task_id for dispatch in dispatches(commands)] == ["t2"]
    commands = harness.trained(1, incarnation="t2", rollback=TO_ONE)
    assert [version.version for version in announced(commands)] == [1]
    assert [cancel.task_id for cancel in cancels(commands)] == ["t2"]
    assert harness.machine.fleet.explorers["e0"].version == -1
    # The next incarnation of the same lineage discards nothing.
    harness.synced(1, announced(commands)[0].epoch)
    harness.trained(1, incarnation="t3", rollback=TO_ONE)
    assert harness.machine.fleet.explorers["e0"].version == 1


# -- checkpoints -----------------------------------------------------------------------------------------------------


def write(directory: Path, step: int) -> None:
    (checkpoint.begin(directory, step) / "model.safetensors").write_text(f"weights {step}")
    progress = TrainingProgress(step=step, version=step, sequence=step)
    checkpoint.commit(directory, progress, WrittenBy(dtype="float32"), keep=9)


@pytest.mark.parametrize("moved", range(4))
def test_a_rollback_that_is_killed_anywhere_is_finished_once(tmp_path: Path, moved: int) -> None:
    for step in range(5):
        write(tmp_path, step)
    assert checkpoint.finish_rollback(tmp_path) is None
    with pytest.raises(CheckpointError, match="its checkpoint is gone"):
        checkpoint.begin_rollback(tmp_path, TO_ONE.model_copy(update={"to": 9}))
    checkpoint.note_told(tmp_path, TrainingProgress(step=5, sequence=5))
    checkpoint.begin_rollback(tmp_path, TO_ONE)
    for step in (4, 3, 2)[:moved]:
        (tmp_path / f"step-{step:08d}").rename(tmp_path / f"discarded-step-{step:08d}")
    assert checkpoint.finish_rollback(tmp_path) == TO_ONE
    assert checkpoint.steps(tmp_path) == [0, 1]
    assert checkpoint.read_told(tmp_path).sequence == 0
    assert sorted(path.name for path in tmp_path.glob("discarded-*")) == [f"discarded-step-{i:08d}" for i in (2, 3, 4)]
    # What is made since stays, however often it is started.
    write(tmp_path, 2)
    assert checkpoint.finish_rollback(tmp_path) == TO_ONE
    assert checkpoint.steps(tmp_path) == [0, 1, 2]


# -- the trainer, and the command ------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.timeout(600)
async def test_a_trainer_begins_a_new_life_from_the_older_version_the_same_after_a_kill(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    """The test plays the coordinator."""
    kafka = unused(kafka)
    trainer = Trainer(kafka, tmp_path / "trainer", write_model(tmp_path / "model"), total_steps=4)
    batches = batches_of(4)

    async def scenario() -> list[StepTrained]:
        async with Bus(kafka, client_id="test") as bus, bus.producer() as producer:
            await produce(bus, batches[:3])
            async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
                with trainer.running() as process:
                    said = trained(await until(events, step_is(3), process))
                    wanted = VersionWanted(model=said[0].model, rollback=Rollback(to=1, through=3, reason="diverged"))
                    await (await producer.send(COORDINATOR_EVENTS, "c", wanted))
                    # Another incarnation of the same process passes over batches 2 and 3.
                    said += trained(await until(events, step_is(3), process))
                    process.kill()
                await produce(bus, batches[3:], first=4)
                with trainer.running() as process:
                    return said + trained(await until(events, step_is(4), process))

    said = await scenario()
    assert [step.step for step in said] == [0, 1, 2, 3, 1, 2, 3, 3, 4]
    first, second, third = said[:4], said[4:7], said[7:]
    assert [len({step.incarnation for step in incarnation}) for incarnation in (first, second, third)] == [1, 1, 1]
    assert len({step.incarnation for step in said}) == 3
    assert {step.checksum for step in (*second, third[0])} == {first[1].checksum}
    assert len({step.checksum for step in first} | {third[1].checksum}) == 5
    assert [step.rollback for step in first] == [None] * 4
    assert {step.rollback.to if step.rollback else None for step in (*second, *third)} == {1}
    skipped = [(batch.batch_id, batch.step, batch.reason) for batch in third[-1].skipped]
    assert skipped == [(f"batch-{i}", i, "rolled back to version 1: diverged") for i in (2, 3)]
    folders = sorted(path.name for path in (tmp_path / "trainer" / "checkpoints").iterdir())
    assert folders[-3:] == ["step-00000002", "step-00000003", "step-00000004"]
    assert "discarded-step-00000003" in folders


@pytest.mark.integration
async def test_the_command_asks_for_it_in_so_many_words(kafka: KafkaSettings) -> None:
    settings = Settings(kafka=unused(kafka))

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return trinity_bus(settings.kafka, "versions", "rollback", *arguments)

    def step(version: int, incarnation: str, rollback: Rollback | None = None) -> StepTrained:
        return step_trained(version, incarnation, rollback=rollback)

    async with (
        with_topics(settings.kafka) as bus,
        beside(Coordinator(settings, bus).run()),
        bus.producer() as producer,
        bus.reader(COORDINATOR_EVENTS, start="beginning") as events,
        bus.reader(MODEL_VERSIONS, start="beginning") as versions,
    ):
        await (await producer.send(TRAINER_EVENTS, "trainer-0", step(5, "life-1")))
        # Commands have a topic of their own: one may overtake what the trainer has said.
        await first(versions, ModelVersion, lambda announced: announced.version == 5)
        unsure = await asyncio.to_thread(command, "--to", "2", "--reason", "it diverged")
        assert unsure.returncode == 2
        assert "say --discard" in unsure.stderr
        asking = asyncio.create_task(
            asyncio.to_thread(command, "--to", "2", "--reason", "it diverged", "--as", "olga", "--discard")
        )
        told = asyncio.create_task(first(events, VersionWanted, lambda asked: asked.rollback is not None))
        await asyncio.wait({asking, told}, return_when=asyncio.FIRST_COMPLETED)
        assert not asking.done(), asking.result()
        wanted = (await told).rollback
        assert wanted == Rollback(to=2, through=2, reason="it diverged", asked_by="olga")
        await (await producer.send(TRAINER_EVENTS, "trainer-0", step(2, "life-2", wanted)))
        done = await asking
        assert (done.returncode, done.stderr.strip()) == (0, "Training goes on from version 2.")
