"""Steps that a replay trains from the log, beside the same steps of the bare engine, which is given its batches."""

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks._cluster import cluster_to_measure
from benchmarks._report import Row, less
from schemas import ExperienceGroup, ResultPart, StepBegun, StepGroup
from schemas.step import step_key
from schemas.topics import EXPERIENCES, STEPS
from trinity_bus.bus import Bus
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.training import checkpoint
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from workers.trainer.replay import ReplayRequest, replay
from workers.trainer.without_batches import METRICS

GOAL = 0.95
"""Of a replay's steps a second over the bare engine's."""


async def record(bus: Bus, run: str, groups: Sequence[ExperienceGroup], steps: int) -> None:
    """Write what a live run would have: experiences, and so many steps that were each made of all of them."""
    await bus.ensure_topics()
    async with bus.producer() as producer:
        for step in range(1, steps + 1):
            placed = [(group, await producer.send(EXPERIENCES, group.task_id, group)) for group in groups]
            begun = StepBegun(
                trainer="trainer-0",
                incarnation="recorded",
                run=run,
                model="policy",
                step=step,
                batch_id=f"batch-{step}",
                sequence=step,
                next_offset=step,
                groups=[
                    StepGroup(
                        task_id=group.task_id,
                        parts=[ResultPart(attempt=1, samples=len(group), position=await position)],
                    )
                    for group, position in placed
                ],
            )
            await (await producer.send(STEPS, step_key("trainer-0", step), begun))


def bare(settings: TrainerSettings, groups: Sequence[ExperienceGroup], steps: int) -> list[float]:
    """Return the wall seconds of steps of the engine alone, but for the first."""
    engine = MegatronEngine(settings)
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        engine.train_step(groups)
        took.append(time.perf_counter() - began)
    engine.leave()
    return took[1:]


def replayed(settings: Settings, name: str, folder: Path) -> list[float]:
    """Return the wall seconds from the end of a step to that of the next, in a replay."""
    asyncio.run(replay(ReplayRequest(settings, settings, name, folder, 1)))
    ends = [json.loads(line)["time"] for line in (folder / METRICS).read_text().splitlines()]
    return [after - before for before, after in itertools.pairwise(ends)]


def replaying(
    name: str, trainer: TrainerSettings, groups: Sequence[ExperienceGroup], *, steps: int, turns: int
) -> list[Row]:
    with cluster_to_measure() as cluster:
        live = cluster.folder / "live"
        live.mkdir()
        kafka = cluster.unused()

        async def write() -> None:
            async with Bus(kafka, client_id="benchmark") as bus:
                await record(bus, checkpoint.run_name(live), groups, steps)

        asyncio.run(write())
        # One checkpoint, at the end: what these cost is measured elsewhere.
        own = trainer.model_copy(update={"checkpoint_dir": live, "checkpoint_interval": steps})
        mesh = Settings().mesh.model_copy(update={"model_path": trainer.model_path})
        settings = Settings().model_copy(update={"kafka": kafka, "mesh": mesh, "trainer": own})
        alone, once_more = [statistics.median(bare(own, groups, steps))], []
        for turn in range(turns):
            called = f"replay-{turn}"
            once_more.append(statistics.median(replayed(settings, called, cluster.folder / called)))
            alone.append(statistics.median(bare(own, groups, steps)))
    ratios = [sum(around) / 2 / whole for around, whole in zip(itertools.pairwise(alone), once_more, strict=True)]
    return [
        less(f"{name}: a step of the bare engine", statistics.median(alone), "s"),
        less(f"{name}: a step of a replay", statistics.median(once_more), "s"),
        Row(f"{name}: replay's steps/s over the bare engine's", statistics.median(ratios), "", goal=GOAL),
    ]
