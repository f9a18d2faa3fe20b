"""A trainer as a process, what it trains on, and what it says."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    ExperienceGroup,
    ManifestEntry,
    Position,
    ResultPart,
    StepBegun,
    StepTrained,
)
from schemas.topics import BATCHES, EXPERIENCES, STEPS, TRAINER_EVENTS
from tests.support.fakes.experiences import make_group
from tests.support.mesh.forks import forked
from trinity_bus.bus import Bus, Reader
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.process import Process

LINKED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DEADLINE_S = 180.0  # a machine at its limit takes minutes to import Megatron


class Trainer:
    """A trainer process and its folder."""

    def __init__(self, kafka: KafkaSettings, folder: Path, model: Path, **settings: object) -> None:
        values = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "mesh.namespace": kafka.namespace,
            "telemetry.run_dir": folder / "run",
            "mesh.model_path": model,
            "trainer.checkpoint_dir": folder / "checkpoints",
            "trainer.learning_rate": 0.01,
            "trainer.mini_batches": 3,
            "trainer.threads": 1,
            "trainer.heartbeat_s": 0.2,
            **{name if "." in name else f"trainer.{name}": value for name, value in settings.items()},
        }
        self.folder = folder
        self.log = folder / "trainer.log"
        folder.mkdir(exist_ok=True)
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            **{f"TRINITY_BUS_{name.replace('.', '__').upper()}": str(value) for name, value in values.items()},
        }

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[Process]:
        """It is up to ``trainer_process`` what the arguments are."""
        command = ("tests.integration.training.trainer_process", *arguments)
        with forked(*command, name="trainer", env=self.environment, output=self.log, kind="engines") as process:
            yield process

    def dies(self, point: str, step: int) -> None:
        with self.running(point, str(step)) as process:
            assert process.wait(DEADLINE_S) == -signal.SIGKILL, self.log.read_text()


def entry_of(task_id: str, attempt: int, samples: int, position: Position) -> ManifestEntry:
    return ManifestEntry(
        task_id=task_id,
        status="completed",
        parts=[ResultPart(attempt=attempt, samples=samples, position=position)],
    )


async def produce(bus: Bus, batches: Sequence[Sequence[ExperienceGroup]], *, first: int = 1) -> None:
    """Writes experiences and their batches as a coordinator would, with records between that ask for nothing."""
    await bus.ensure_topics()
    async with bus.producer() as producer:
        for sequence, groups in enumerate(batches, first):
            positions = [await (await producer.send(EXPERIENCES, group.task_id, group)) for group in groups]
            manifest = [
                entry_of(group.task_id, group.attempt, len(group), position)
                for group, position in zip(groups, positions, strict=True)
            ]
            failed = ManifestEntry(task_id=f"failed-{sequence}", status="failed", error="TimeoutError: too slow")
            batch = BatchRecord(
                batch_id=f"batch-{sequence}",
                batch_type="train",
                state=BatchLifecycleState.FINALIZED,
                sequence=sequence,
                expected_task_count=len(manifest) + 1,
                manifest=[*manifest[:1], failed, *manifest[1:]],
                trace_links=[LINKED],
            )
            eval_batch = batch.model_copy(update={"batch_id": f"eval-{sequence}", "batch_type": "eval", "sequence": 0})
            running = batch.model_copy(update={"state": BatchLifecycleState.RUNNING, "manifest": []})
            for record in (running, eval_batch, batch):
                await (await producer.send(BATCHES, record.batch_id, record))


def batches_of(steps: int) -> list[list[ExperienceGroup]]:
    return [
        [
            make_group(seed=100 * step, task_id=f"task-{step}-a", version=step),
            make_group(seed=100 * step + 1, task_id=f"task-{step}-equal", rewards=[1.0, 1.0]),
            make_group(seed=100 * step + 2, task_id=f"task-{step}-b", version=step),
        ]
        for step in range(steps)
    ]


def drawn(group: ExperienceGroup, *, top_p: float) -> ExperienceGroup:
    """The first of its samples was drawn with top-p, all at another temperature than the trainer's."""
    sampling = np.array([[0.7, top_p if i == 0 else 1.0, 0, 0] for i in range(len(group))], np.float32)
    return replace(group, sampling=sampling)


async def until(reader: Reader, wanted: Callable[[Any], bool], process: Process) -> list[Any]:
    """The records up to and with the first that is wanted."""
    seen: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        # Before the look: all that it has ever said is on the log then, if it has ended.
        ended = process.poll()
        found = await reader.batch(0.5)
        for received in found:
            seen.append(received.record)
            if wanted(received.record):
                return seen
        assert found or ended is None, f"the trainer ended with {ended}"
    raise TimeoutError(f"not seen within {DEADLINE_S} s; seen: {[type(record).__name__ for record in seen]}")


def trained(records: Sequence[Any]) -> list[StepTrained]:
    return [record for record in records if isinstance(record, StepTrained)]


async def begun(bus: Bus) -> list[StepBegun]:
    async with bus.reader(STEPS, start="beginning") as steps:
        return [received.record async for received in steps.replay() if isinstance(received.record, StepBegun)]


def step_is(step: int) -> Callable[[Any], bool]:
    return lambda record: isinstance(record, StepTrained) and record.step == step


async def train_to_the_end(bus: Bus, trainer: Trainer, steps: int) -> list[StepTrained]:
    """Runs the trainer until the last step, ends it politely, and gives all it ever said about steps."""
    async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
        with trainer.running() as process:
            said = trained(await until(events, step_is(steps), process))
            process.terminate()
            assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0, trainer.log.read_text()
    return said


def deterministic(step: StepTrained) -> dict[str, float]:
    return {name: value for name, value in step.metrics.items() if name != "seconds"}


def assert_same(told: Sequence[StepTrained], undisturbed: Sequence[StepTrained]) -> None:
    """Whatever was killed, each step has the weights and figures that it has where nothing is."""
    expected = {step.step: step for step in undisturbed}
    for step in told:
        assert step.checksum == expected[step.step].checksum
        if step.batch_id is not None:
            assert step.batch_id == expected[step.step].batch_id
            assert deterministic(step) == deterministic(expected[step.step])


async def until_logged(trainer: Trainer, text: str, process: Process) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while text not in trainer.log.read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline, f"{text!r} is not in {trainer.log.read_text()}"
        await asyncio.sleep(0.05)
