"""A trainer that is killed at random instants, in each way of publishing, trains as one that is not.

Real processes on a real broker, forked so that each starts in a moment. ``FAULT_SEED``, which is printed, repeats the
plan; ``FAULT_KILLS=30``, and with it ``make kills``, has it go on for longer. Megatron's engine, which takes longer to
begin, is killed a quarter as often.
"""

import asyncio
import os
import random
import select
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from schemas import StepBegun, StepTrained
from schemas.topics import STEPS, TRAINER_EVENTS
from tests.integration.training.trainers import DEADLINE_S, Trainer, batches_of, deterministic, produce
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.mesh import unused
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings

KILLS = int(os.environ.get("FAULT_KILLS", "8"))
pytestmark = [pytest.mark.integration, pytest.mark.timeout(max(600, 60 * KILLS))]
STEPS_TRAINED = max(8, KILLS)
PAUSE_S = 0.02
"""Longest time between a point and the kill."""


def run_trainer(trainer: Trainer, look: Callable[[int, int], None]) -> int | None:
    """Run a trainer until it ends; ``look`` gets its process id and its points. Its status."""
    points = trainer.folder / f"points-{uuid.uuid4().hex[:8]}"
    os.mkfifo(points)
    with trainer.running("--tell", str(points)) as process:
        pid = process.pid  # waits until it is forked
        pipe = os.open(points, os.O_RDONLY)
        try:
            look(pid, pipe)
        finally:
            os.close(pipe)
        return process.wait(DEADLINE_S)


def kill_after(points: int, pause_s: float, trainer: Trainer, *, speaks: bool) -> Callable[[int, int], None]:
    """Kills it at a point, or where it has trained all before that. To be made before it starts.

    ``speaks``: whether it is let tell of a step first; points before that are not counted.
    """
    said = times_told(trainer)

    def look(pid: int, pipe: int) -> None:
        left, silent = points, speaks
        while left > 0 and times_told(trainer) == said:
            if select.select([pipe], [], [], 0.05)[0]:
                seen = os.read(pipe, 1)
                assert seen, trainer.log.read_text()
                silent = silent and seen != b"a"
                left -= not silent
        # Not a wait for anything: the instant is to be between two points, too.
        time.sleep(pause_s)
        os.kill(pid, signal.SIGKILL)

    return look


def times_told(trainer: Trainer) -> int:
    """How often it has said, over all its lives, that the last step is trained."""
    said = trainer.log.read_text() if trainer.log.exists() else ""
    return said.count(f"{STEPS_TRAINED} steps are trained")


def until_told(trainer: Trainer) -> Callable[[int, int], None]:
    """Ends it politely, once it says that the last step is trained. To be made before it starts."""
    said = times_told(trainer)

    def look(pid: int, pipe: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while times_told(trainer) == said:
            lives = not select.select([pipe], [], [], 0.05)[0] or os.read(pipe, 1 << 12)
            assert lives, trainer.log.read_text()
            assert time.monotonic() < deadline, trainer.log.read_text()
        os.kill(pid, signal.SIGTERM)

    return look


async def heard(bus: Bus) -> tuple[list[StepTrained], list[StepBegun]]:
    async with bus.reader(TRAINER_EVENTS, STEPS, start="beginning") as reader:
        records = [received.record async for received in reader.replay()]
    return [r for r in records if isinstance(r, StepTrained)], [r for r in records if isinstance(r, StepBegun)]


def made_of(begun: list[StepBegun]) -> dict[int, object]:
    """What each step was made of, by its last record."""
    return {
        record.step: (record.batch_id, record.seed, [group.task_id for group in record.groups], record.left_out)
        for record in begun
    }


@pytest.mark.parametrize("way", [("durable", 1, 12), ("staged", 3, 24)], ids=["durable", "staged"])
@pytest.mark.parametrize(
    ("engine", "kills"), [("torch", KILLS), ("megatron", max(2, KILLS // 4))], ids=["torch", "megatron"]
)
async def test_killed_at_random_instants_it_trains_the_same(
    kafka: KafkaSettings, tmp_path: Path, engine: str, kills: int, way: tuple[str, int, int]
) -> None:
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"FAULT_SEED={seed}")
    plan, (publish, interval, points) = random.Random(seed), way  # noqa: S311 - a plan, no secret
    model, batches = write_model(tmp_path / "model"), batches_of(STEPS_TRAINED)

    async def scenario(folder: str, kills: int) -> tuple[list[StepTrained], list[StepBegun], Path]:
        ours = unused(kafka)
        trainer = Trainer(
            *(ours, tmp_path / folder, model),
            engine=engine,
            publish=publish,
            checkpoint_interval=interval,
            total_steps=STEPS_TRAINED,
        )
        async with Bus(ours, client_id="test") as bus:
            await produce(bus, batches)
            for life in range(kills):
                # Of several that are killed at random, all may be so before they say a word.
                look = kill_after(plan.randint(1, points), plan.uniform(0, PAUSE_S), trainer, speaks=life == 0)
                assert await asyncio.to_thread(run_trainer, trainer, look) == -signal.SIGKILL, trainer.log.read_text()
            look = until_told(trainer)
            assert await asyncio.to_thread(run_trainer, trainer, look) == 0, trainer.log.read_text()
            return *await heard(bus), tmp_path / folder / f"checkpoints/step-{STEPS_TRAINED:08d}"

    expected, expected_begun, whole = await scenario("undisturbed", 0)
    assert [step.step for step in expected] == list(range(STEPS_TRAINED + 1))
    told, begun, disturbed = await scenario("disturbed", kills)

    assert len({step.incarnation for step in told}) > 1, "some lived long enough to say a word"
    assert made_of(begun) == made_of(expected_begun), "the same samples in the same order"
    undisturbed = {step.step: step for step in expected}
    for step in told:
        assert step.checksum == undisturbed[step.step].checksum, "the same weights in every version ever told of"
        if step.batch_id is not None:
            assert deterministic(step) == deterministic(undisturbed[step.step]), "the same losses"
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(disturbed / name), load_file(whole / name)
        assert ours.keys() == theirs.keys()
        differing = [tensor for tensor in ours if not ours[tensor].equal(theirs[tensor])]
        assert not differing, name
    if publish == "durable":
        told_once = [step.step for step in told if step.batch_id is not None]
        assert told_once == sorted(set(told_once)), "what is told of is never taken back"
