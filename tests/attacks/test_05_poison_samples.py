"""Attack 5: samples that are well formed, and that no model can be trained on.

Before: explorer and coordinator took them, and each start of the trainer ended at them. Now the explorer refuses them
as failed attempts with a reason; the trainer leaves out what reaches it all the same; and what it cannot train on at
all is passed over when an operator says so, the same after any crash. So it is with a workflow that measures so much
that the result of its attempt cannot be sent: the explorer ended, and so did the next one that got the task.
"""

import asyncio
import os
import re
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    BatchSkipped,
    ExperienceGroup,
    RolloutFinished,
    StepBegun,
    StepTrained,
    Task,
)
from schemas.topics import BATCHES, EXPERIENCES, TRAINER_EVENTS
from tests.integration.explorer.explorers import dispatch, explored, fork_server, settings
from tests.integration.training.trainers import (
    Trainer,
    assert_same,
    batches_of,
    begun,
    deterministic,
    entry_of,
    produce,
    step_is,
    train_to_the_end,
    trained,
    until,
)
from tests.support.fakes.experiences import make_group
from tests.support.fakes.mesh_records import finalized
from tests.support.fakes.rogue_workflows import POISON
from tests.support.fakes.tiny_trainer import write_model
from tests.support.fakes.workers import FakeExplorer
from tests.support.mesh.mesh import Mesh as CoordinatorMesh
from tests.support.mesh.mesh import send_tasks, trinity_bus
from tests.support.mesh.records import first
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.runners.fork_server import ForkServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

__all__ = ["fork_server", "settings"]

POSITIONS = 128
"""Of the model that is trained."""
FLAWED = {
    "infinite reward": "reward inf is beyond 1e+09",
    "reward beyond a float32": "reward inf is beyond 1e+09",
    "empty prompt": "it has no prompt",
    "token beyond the vocabulary": "token id 1114112 is not one of",
    "negative token": "token id -1 is not one of",
    "nan logprob": "nan is no log-probability",
    "infinite logprob": "inf is no log-probability",
    "positive logprob": "0.5 is no log-probability",
}
ATTEMPTS: list[tuple[str, str, dict[str, Any], str]] = [
    *(("poison", kind, {}, f"UntrainableSampleError: run 1: .*{re.escape(reason)}") for kind, reason in FLAWED.items()),
    *(
        ("chatty", metrics, {"repeat_times": runs, "batch_type": batch_type}, reason)
        for batch_type in ("train", "eval")
        for metrics, runs, reason in (
            ("50", 512, "UnsendableResultError: .*bytes"),
            ("65", 1, "WorkflowError: run 0 has 65 metrics, at most 64 are sent$"),
        )
    ),
]
"""Workflow, prompt, what is asked for, and the reason why it fails."""


async def test_an_explorer_refuses_what_it_cannot_send_and_goes_on(settings: Settings, fork_server: ForkServer) -> None:
    assert set(FLAWED) == set(POISON)
    async with explored(settings, fork_server) as mesh:
        incarnation = mesh.incarnation

        async def result_of(task_id: str, workflow: str, prompt: str, **asked: Any) -> RolloutFinished:
            task = Task(task_id=task_id, workflow=workflow, prompt=prompt)
            await mesh.send(dispatch(incarnation, task_id, task=task, **asked))
            return await mesh.event(RolloutFinished, lambda event: event.task_id == task_id)

        for number, (workflow, prompt, asked, reason) in enumerate(ATTEMPTS):
            ended = await result_of(f"t{number}", workflow, prompt, **asked)
            assert (ended.status, ended.experience, ended.samples, ended.metrics) == ("failed", None, 0, [])
            assert re.match(reason, ended.error or ""), ended.error
        # The same explorer, the same incarnation: it goes on.
        good = await result_of("good", "chatty", "50", repeat_times=4)
        assert (good.status, good.incarnation, len(good.metrics)) == ("completed", incarnation, 4)
        # Nothing is wrong with the samples of the first result that could not be sent; nothing names them.
        # The two groups may lie in different partitions, which are read in any order.
        assert {group.task_id for group in await mesh.experiences()} == {f"t{len(FLAWED)}", "good"}


def changed(group: ExperienceGroup, **columns: np.ndarray) -> ExperienceGroup:
    return msgspec.structs.replace(group, **columns)


def poisoned(step: int) -> list[ExperienceGroup]:
    """Groups with one flawed sample each, and some without a single sample that could be trained on."""
    made = [
        make_group(seed=1000 * step + i, task_id=f"poison-{step}-{i}", version=step, prompt=POSITIONS if i == 6 else 3)
        for i in range(9)
    ]
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    first = np.arange(len(made[8].mask)) < made[8].lengths[0] - made[8].prompt_lengths[0]
    return [
        changed(made[0], rewards=np.array([inf, 1.0, 0.5, 0.0], np.float32)),
        changed(made[1], tokens=np.where(np.arange(len(made[1].tokens)) == 0, 32, made[1].tokens).astype(np.int32)),
        changed(made[2], tokens=np.where(np.arange(len(made[2].tokens)) == 0, -1, made[2].tokens).astype(np.int32)),
        changed(made[3], logprobs=np.where(np.arange(len(made[3].logprobs)) == 0, nan, made[3].logprobs)),
        changed(made[4], logprobs=made[4].logprobs + np.float32(9)),
        changed(made[5], logprobs=np.where(np.arange(len(made[5].logprobs)) == 0, -inf, made[5].logprobs)),
        made[6],
        without_response(made[7]),
        changed(made[8], mask_bits=np.packbits(made[8].mask & ~first)),
    ]


def without_response(group: ExperienceGroup) -> ExperienceGroup:
    """Of its first sample."""
    prompt, length = int(group.prompt_lengths[0]), int(group.lengths[0])
    return changed(
        group,
        tokens=np.delete(group.tokens, np.s_[prompt:length]),
        lengths=np.concatenate([group.prompt_lengths[:1], group.lengths[1:]]),
        logprobs=group.logprobs[length - prompt :],
        mask_bits=np.packbits(group.mask[length - prompt :]),
        versions=group.versions[1:],
    )


LEFT_OUT = [
    ("bad_reward", [0]),
    ("bad_token", [0]),
    ("bad_token", [0]),
    ("bad_logprob", [0]),
    ("bad_logprob", [0, 1, 2, 3]),
    ("bad_logprob", [0]),
    ("too_long", [0, 1, 2, 3]),
    ("empty", [0]),
    ("all_masked", [0]),
]
"""Why, and which samples, of the groups of ``poisoned``."""


async def skip(bus: Bus, sequence: int) -> None:
    """As the coordinator writes it."""
    record = BatchSkipped(batch_id=f"batch-{sequence}", sequence=sequence, reason="poison", client="operator")
    async with bus.producer() as producer:
        await (await producer.send(BATCHES, f"skip {record.batch_id}", record))


async def produce_bad(bus: Bus, groups: Sequence[ExperienceGroup], sequence: int) -> None:
    """A batch whose manifest names another attempt than lies there: nobody can train on it."""
    async with bus.producer() as producer:
        positions = [await (await producer.send(EXPERIENCES, group.task_id, group)) for group in groups]
        manifest = [entry_of(g.task_id, 2, len(g), at) for g, at in zip(groups, positions, strict=True)]
        await (await producer.send(BATCHES, f"batch-{sequence}", finalized(sequence, manifest=manifest)))


def lineage(step: StepTrained) -> list[tuple[str, int, str]]:
    return [(batch.batch_id, batch.step, batch.reason) for batch in step.skipped]


async def test_a_trainer_leaves_out_what_reaches_it_and_skips_what_it_cannot_read_the_same_whatever_is_killed(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    """What a forged record, or an older explorer, brings."""
    model, batches = write_model(tmp_path / "model"), batches_of(4)

    async def scenario(folder: Path, *deaths: tuple[str, int]) -> tuple[list[StepTrained], list[StepBegun]]:
        kafka = namespaced()
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, [batches[0] + poisoned(0)])
            await produce_bad(bus, batches[1], 2)
            await produce(bus, [[poisoned(1)[4]], batches[3]], first=3)
            await skip(bus, 2)
            trainer = Trainer(kafka, folder, model, total_steps=4)
            for point, step in deaths:
                await asyncio.to_thread(trainer.dies, point, step)
            said = await train_to_the_end(bus, trainer, 4)
            assert "leaves out 15 samples: task poison-0-0, sample 0: reward inf" in trainer.log.read_text()
            return said, await begun(bus)

    (start, first, passed, nothing, last), written = await scenario(tmp_path / "undisturbed")
    assert [(one.task_id, one.reason, one.samples) for one in written[0].left_out] == [
        (f"poison-0-{i}", *why) for i, why in enumerate(LEFT_OUT)
    ]
    assert [len(record.left_out) for record in written] == [len(LEFT_OUT), 0, 1, 0]
    counted: dict[str, int] = defaultdict(int)
    for reason, samples in LEFT_OUT:
        counted[f"samples_left_out/{reason}"] += len(samples)
    assert {name: value for name, value in first.metrics.items() if name.startswith("samples_left_out/")} == counted
    assert first.metrics["samples_left_out"] == sum(counted.values()) == 15
    assert first.metrics["samples_trained"] >= 8
    assert np.isfinite([value for step in (first, nothing, last) for value in step.metrics.values()]).all()
    # A step that is passed over, or that nothing is left for, changes nothing.
    assert (nothing.metrics["samples_left_out"], nothing.metrics["samples_trained"]) == (4, 0)
    assert first.checksum == passed.checksum == nothing.checksum
    assert len({start.checksum, first.checksum, last.checksum}) == 3
    skipped = [("batch-2", 2, "poison")]
    assert [lineage(step) for step in (start, first, passed, last)] == [[], [], skipped, skipped]

    expected = {step.step: step for step in (start, first, passed, nothing, last)}
    told, again = await scenario(tmp_path / "disturbed", ("trained", 2))
    assert [record.left_out for record in again] == [record.left_out for record in written]
    assert_same(told, list(expected.values()))
    assert all(lineage(step) == lineage(expected[step.step]) for step in told)


async def test_a_skip_that_comes_after_a_step_was_told_of_changes_nothing_though_it_is_taken_again(
    namespaced: Callable[[], KafkaSettings], tmp_path: Path
) -> None:
    """Steps 1 to 3 have no checkpoint: after a kill they are taken again, as everybody was told that they were."""
    kafka, batches = namespaced(), batches_of(4)
    trainer = Trainer(
        kafka,
        tmp_path / "trainer",
        write_model(tmp_path / "model"),
        **{
            "trainer.total_steps": 4,
            "trainer.checkpoint_interval": 100,
            "synchronizer.trainer_sync_interval": 4,
            "coordinator.max_staleness": 3,
        },
    )

    async def scenario() -> tuple[list[StepTrained], list[StepTrained]]:
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, batches[:2])
            await skip(bus, 1)
            async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
                with trainer.running() as process:
                    before = trained(await until(events, step_is(2), process))
            # Killed. It has told of both.
            await skip(bus, 2)
            await produce(bus, batches[2:], first=3)
            await skip(bus, 3)
            everything = await train_to_the_end(bus, trainer, 4)
            return before, everything[len(before) :]

    before, after = await scenario()
    assert [step.step for step in before] == [0, 1, 2]
    assert [step.step for step in after] == [0, 1, 2, 3, 4]
    told = [(step.step, lineage(step), deterministic(step)) for step in before[1:]]
    assert [(step.step, lineage(step), deterministic(step)) for step in after[1:3]] == told
    assert lineage(after[-1]) == [("batch-1", 1, "poison"), ("batch-3", 3, "poison")]
    assert before[-1].metrics["samples_trained"] > 0


async def test_an_operator_skips_a_batch_by_one_command_whichever_coordinator_works(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    mesh = CoordinatorMesh(kafka, tmp_path)

    def command(batch: str) -> subprocess.CompletedProcess[str]:
        return trinity_bus(mesh.kafka, "batches", "skip", batch, "--reason", "poison", "--timeout", "1")

    async with mesh.connected() as (bus, producer), bus.reader(BATCHES, start="beginning") as batches:
        with mesh.coordinator() as child:
            explorer = FakeExplorer(bus)
            explorer.version = 0
            async with explorer.alive():
                await send_tasks(producer, 4)
                done = await first(batches, BatchRecord, lambda batch: batch.state is BatchLifecycleState.FINALIZED)
            os.kill(child.pid, signal.SIGKILL)
        with mesh.coordinator():
            said = await asyncio.to_thread(command, done.batch_id)
            assert (said.returncode, "is to be passed over; no trainer has reached it" in said.stderr) == (0, True)
            skipped = await first(batches, BatchSkipped)
            assert (skipped.batch_id, skipped.sequence, skipped.reason) == (done.batch_id, 1, "poison")
            unknown = await asyncio.to_thread(command, "never-was")
            assert (unknown.returncode, unknown.stderr.strip()) == (1, "Batch never-was is not registered.")
