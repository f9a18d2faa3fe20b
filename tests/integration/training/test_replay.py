"""A recorded run trained once more, by a replay and by a shadow, on a real broker.

One live run is recorded for all tests, with a shadow beside it that is killed on the way.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from schemas import Position, ResultPart, StepBegun, StepEnded, StepGroup, StepTrained, TrainerHeartbeat
from schemas.step import step_key
from schemas.topic import Topic
from schemas.topics import BATCHES, EXPERIENCES, STEPS, TRAINER_EVENTS
from tests.integration.training.trainers import (
    DEADLINE_S,
    Trainer,
    batches_of,
    begun,
    deterministic,
    drawn,
    produce,
    step_is,
    train_to_the_end,
    until,
)
from tests.support.fakes.experiences import make_group
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.forks import finished
from tests.support.mesh.mesh import PROGRAM, unused, with_topics
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.training.errors import TrainingError
from workers.trainer.replay import ReplayRequest, replay

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STEPS_TRAINED = 5
KEPT = 2
GSPO = {"loss": "gspo"}
SAID_OTHERWISE = {"step", "batch_id", "time", "seconds"}


@dataclass(frozen=True, slots=True)
class Run:
    """What was recorded."""

    kafka: KafkaSettings
    live: Trainer
    shadow: Trainer
    said: Mapping[int, StepTrained]
    alone: Mapping[str, Any]
    """What was said of a run of the same without a shadow beside it; see :func:`said_of`."""
    bytes: Mapping[str, Any]
    """Of all that is the live run's, when it had ended."""


def settings(trainer: Trainer, **changes: Any) -> Settings:
    """Return what the trainer's process has."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in trainer.environment.items():
            patch.setenv(name, value)
        found = Settings()
    return found.model_copy(update={"trainer": found.trainer.model_copy(update=changes)})


def files(folder: Path) -> dict[str, str]:
    """Return a digest of every file; those that the checkpoints do not consist of included."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()
    }


async def records(bus: Bus, topic: Topic, trainer: str = "trainer-0") -> list[tuple[Any, ...]]:
    """Return what is on a topic, of one trainer where it is of several."""
    async with bus.reader(topic, start="beginning", expect=()) as reader:
        found = [(one.partition, one.offset, one.key, one.raw, one.headers) async for one in reader.replay()]
    return sorted(one for one in found if topic is not STEPS or str(one[2]).startswith(f"{trainer}/"))


async def of_the_live_run(bus: Bus, live: Trainer) -> dict[str, Any]:
    log = {topic.name: await records(bus, topic) for topic in (STEPS, BATCHES, EXPERIENCES, TRAINER_EVENTS)}
    return {**log, "files": files(live.folder / "checkpoints")}


async def said_of(bus: Bus, live: Trainer) -> dict[str, Any]:
    """Return all that the live trainer has said and kept, less what names a life, its places and times."""
    named: dict[str, Any] = {
        "incarnation": "",
        "run": "",
        "seconds": 0.0,
        "metrics": {},
        "master_port": 0,
        "checkpoint": None,
    }
    spoken: list[Any] = []
    for topic in (STEPS, TRAINER_EVENTS):
        async with bus.reader(topic, start="beginning") as reader:
            spoken += [one.record async for one in reader.replay()]
    own = [each for each in spoken if each.trainer == "trainer-0" and not isinstance(each, TrainerHeartbeat)]
    told = []
    for each in own:
        without = {name: value for name, value in named.items() if name in type(each).model_fields}
        if isinstance(each, StepBegun):
            without["groups"] = [
                replace(group, parts=[replace(part, position=None) for part in group.parts]) for group in each.groups
            ]
        told.append(each.model_copy(update=without))
    found = files(live.folder / "checkpoints")
    return {
        "told": told,
        "figures": [deterministic(each) for each in own if isinstance(each, StepTrained)],
        "kept": {name: digest for name, digest in found.items() if name.endswith(".safetensors")},
    }


async def recorded(kafka: KafkaSettings, folder: Path) -> Run:
    model, own = write_model(folder / "model"), {"engine": "torch", "total_steps": STEPS_TRAINED}
    batches = batches_of(STEPS_TRAINED)
    batches[1].append(drawn(make_group(seed=901, task_id="limited", version=1), top_p=0.5))
    batches[3] = []  # all its tasks failed
    apart = kafka.model_copy(update={"namespace": f"{kafka.namespace}-alone"})
    undisturbed = Trainer(apart, folder / "alone", model, keep_checkpoints=KEPT, **own)
    async with Bus(apart, client_id="test") as bus:
        await produce(bus, batches)
        await train_to_the_end(bus, undisturbed, STEPS_TRAINED)
        alone = await said_of(bus, undisturbed)
    live = Trainer(kafka, folder / "live", model, keep_checkpoints=KEPT, **own)
    shadow = Trainer(kafka, folder / "shadow", model, name="shadow-0", role="shadow", **own, **GSPO)
    async with with_topics(kafka) as bus:
        with shadow.running("trained", "3") as process:  # which waits, as nothing has begun
            await produce(bus, batches)
            said = await train_to_the_end(bus, live, STEPS_TRAINED)
            assert await asyncio.to_thread(process.wait, DEADLINE_S) == -9, shadow.log.read_text()
        written = await of_the_live_run(bus, live)
        with shadow.running() as process:
            assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0, shadow.log.read_text()
    return Run(kafka, live, shadow, {step.step: step for step in said}, alone, written)


@pytest.fixture(scope="module")
def run(kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory) -> Run:
    ours = unused(kafka)
    return asyncio.run(recorded(ours, tmp_path_factory.mktemp("replay")))


def weights(directory: Path, step: int = STEPS_TRAINED) -> dict[str, bytes]:
    return {
        name: array.tobytes() for name, array in load_file(directory / f"step-{step:08d}" / "model.safetensors").items()
    }


def figures(directory: Path) -> dict[int, dict[str, float]]:
    """Return what a trainer that publishes nothing says of its steps; the last line of each counts."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: {n: v for n, v in line.items() if n not in SAID_OTHERWISE} for line in lines}


async def ended(bus: Bus, trainer: str) -> dict[int, dict[str, float]]:
    """Return what the log says of these."""
    async with bus.reader(STEPS, start="beginning") as reader:
        found = [one.record async for one in reader.replay() if isinstance(one.record, StepEnded)]
    own = [one for one in found if one.trainer == trainer]
    assert all(one.follows == "trainer-0" for one in own)
    return {one.step: {n: v for n, v in one.metrics.items() if n not in SAID_OTHERWISE} for one in own}


def lived(run: Run) -> dict[int, dict[str, float]]:
    steps = {number: deterministic(step) for number, step in run.said.items() if number}
    return {number: {n: v for n, v in step.items() if n != "weights_mismatched"} for number, step in steps.items()}


async def test_with_nothing_changed_it_is_the_live_run_bit_for_bit(run: Run, tmp_path: Path) -> None:
    live = settings(run.live)
    assert await replay(ReplayRequest(live, live, "again", tmp_path, 1)) == STEPS_TRAINED
    assert weights(tmp_path) == weights(run.live.folder / "checkpoints")
    assert figures(tmp_path) == lived(run)
    async with Bus(run.kafka, client_id="test") as bus:
        assert await of_the_live_run(bus, run.live) == run.bytes, "nothing of the live run is touched"
        keys = [(f"again/{step}", f"again/{step}/ended") for step in range(1, 6)]
        assert [key for _, _, key, _, _ in await records(bus, STEPS, "again")] == [key for step in keys for key in step]
        assert await ended(bus, "again") == figures(tmp_path)
    # Once more under the same name there is nothing left to do; another question is refused.
    assert await replay(ReplayRequest(live, live, "again", tmp_path, 1)) == STEPS_TRAINED
    with pytest.raises(TrainingError, match="is of another replay, from step 1 of trainer-0"):
        await replay(ReplayRequest(live, live, "again", tmp_path, 2))


async def test_beside_a_live_run_on_megatron_with_a_critic_and_groups_once_more_it_is_that_bit_for_bit(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    ours, batches = unused(kafka), batches_of(4)
    live = Trainer(
        *(ours, tmp_path / "live", write_model(tmp_path / "model")),
        advantage="gae",
        strategy="priority",
        replay_groups=2,
        old_logprobs="recompute",
    )
    async with Bus(ours, client_id="test") as bus:
        await produce(bus, batches[:2])
        async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
            with live.running() as process:
                said = await until(events, step_is(2), process)
                its = settings(live)
                replaying = asyncio.create_task(replay(ReplayRequest(its, its, "again", tmp_path / "again", 1, 2)))
                await produce(bus, batches[2:3], first=3)
                assert await replaying == 2
                await produce(bus, batches[3:], first=4)
                await until(events, step_is(4), process)
                process.terminate()
                assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0, live.log.read_text()
        assert [len(step.replayed) for step in await begun(bus) if step.trainer == "again"] == [0, 2]
    steps = {each.step: deterministic(each) for each in said if isinstance(each, StepTrained) and each.step}
    was = {number: {n: v for n, v in one.items() if n != "weights_mismatched"} for number, one in steps.items()}
    assert figures(tmp_path / "again") == was
    assert "critic_loss" in was[2]
    assert weights(tmp_path / "again", 2) == weights(live.folder / "checkpoints", 2)


async def test_other_settings_begin_with_the_weights_that_the_live_run_had(run: Run, tmp_path: Path) -> None:
    live, changed = settings(run.live), settings(run.live, **GSPO)
    await replay(ReplayRequest(live, changed, "later", tmp_path / "later", 3))
    found, was = figures(tmp_path / "later"), lived(run)
    assert (found[1], found[2]) == (was[1], was[2])
    assert found[3] != was[3]
    assert found[3]["mismatch_k3"] == was[3]["mismatch_k3"], "what the weights give before the first update"
    # From the first step on it is what a shadow has made of the stream, killed or not.
    await replay(ReplayRequest(live, changed, "whole", tmp_path / "whole", 1, 5))
    assert weights(tmp_path / "whole") == weights(run.shadow.folder / "checkpoints") != weights(tmp_path / "later")
    assert figures(tmp_path / "whole") == figures(run.shadow.folder / "checkpoints")


async def test_a_shadow_leaves_the_live_run_as_it_is(run: Run) -> None:
    follows = re.findall(r"following trainer-0 from step (\d) on", run.shadow.log.read_text())
    assert follows[0] == "1"
    assert follows[1] in {"2", "3"}, "it was killed in that one, while the checkpoint before was perhaps being written"
    async with Bus(run.kafka, client_id="test") as bus:
        assert await said_of(bus, run.live) == run.alone, "as if there had been no shadow"
        assert await of_the_live_run(bus, run.live) == run.bytes, "nor has the shadow changed it after its end"
        assert await ended(bus, "shadow-0") == figures(run.shadow.folder / "checkpoints")
        async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
            speakers = {received.key async for received in events.replay()}
    assert speakers == {"trainer-0"}, "nobody else hears of it"


def test_as_a_command_it_goes_on_from_the_newest_checkpoint_before_the_step(run: Run) -> None:
    command = ["replay", "--from-step", "5", "--set", "objective.loss=gspo"]
    done = finished(PROGRAM, *command, env=run.live.environment, limit_s=DEADLINE_S, kind="engines")
    assert done.returncode == 0, done.stderr
    own = run.live.folder / "checkpoints-replay-5"
    assert f"step 5 is trained: checkpoints and metrics.jsonl are in {own}" in done.stdout
    assert "replay-5, from step 5 on: trainer.loss: ppo -> gspo" in done.stderr
    assert [*figures(own)] == [5], "from the checkpoint of step 4"


async def test_of_deleted_experiences_it_names_the_first_step_that_can_still_be_trained(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    ours = unused(kafka)
    trainer = Trainer(ours, tmp_path / "live", write_model(tmp_path / "model"), engine="torch")
    directory = tmp_path / "live" / "checkpoints"
    (directory / "step-00000002").mkdir(parents=True)
    (directory / ".run").write_text("0" * 32)
    async with with_topics(ours) as bus:
        async with bus.producer() as producer:
            for step in range(1, 5):
                one = make_group(seed=step, task_id=f"task-{step}")
                at = await (await producer.send(EXPERIENCES, "task", one, partition=0))
                begun = StepBegun(
                    trainer="trainer-0",
                    incarnation="life",
                    run="0" * 32,
                    model="policy",
                    step=step,
                    batch_id=f"batch-{step}",
                    sequence=step,
                    next_offset=step,
                    groups=[StepGroup(task_id=one.task_id, parts=[ResultPart(attempt=1, samples=4, position=at)])],
                )
                await (await producer.send(STEPS, step_key("trainer-0", step), begun))
        await bus.delete_before({(EXPERIENCES.name, 0): Position(partition=0, offset=1).offset})
    live = settings(trainer)
    line = (
        "step 1 of trainer-0 cannot be trained once more: its experiences are gone from the log; the first that can "
        "still be is 3"
    )
    with pytest.raises(TrainingError) as refused:
        await replay(ReplayRequest(live, live, "again", tmp_path / "again", 2))
    assert str(refused.value) == line
    with pytest.raises(TrainingError, match="steps 3 to 9 cannot be trained once more: trainer-0 has begun 4"):
        await replay(ReplayRequest(live, live, "again", tmp_path / "again", 3, 9))
