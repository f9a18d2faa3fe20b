"""A trainer that publishes nothing: no versions, no explorers; see ``service``.

::

    start:  load the model -> load the newest checkpoint, of this run -> what was written on `steps`
    step:   its source says what it is made of -------------------------------------------------> steps
            train            (``training_loop``)
            those figures by token, of some groups ---------------------------------------------> token-figures
            its figures, and a line of `metrics.jsonl`, beside the checkpoints -----------------> steps
            checkpoint       (at each `checkpoint_interval`, and after the last step; written beside the next step)
    end:    after `total_steps`; without that, never

Sources: :class:`ExampleSteps` (demonstrations or preferences), ``shadow`` (the steps of another trainer).

Killed at any instant and started again it goes on from its newest checkpoint, and takes the steps since as they were
written; their figures are told twice then, and the last ones count. A checkpoint that cannot be written
ends it, at the next one or at its end.
"""

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Literal

from schemas import StepBegun
from schemas.topic import Topic
from schemas.topics import DEMONSTRATIONS
from trinity_bus.bus import Bus
from trinity_bus.health.process import mark_ready
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.ranks.followers import RankSource
from trinity_bus.training.stages import Stage
from workers.trainer.engines import StartingPoint
from workers.trainer.training_loop import StepInput, StepSource, Trained, TrainerContext, TrainingLoop, opened

METRICS: Final = "metrics.jsonl"


class ExampleSteps(StepSource):
    def __init__(self, around: TrainerContext) -> None:
        if around.examples is None:
            raise ValueError(f"{around.topic.name} has no examples")
        self._around = around
        self._examples = around.examples
        self._kind = "demonstrations" if around.topic is DEMONSTRATIONS else "preferences"

    async def open(self, progress: TrainingProgress) -> None:
        await self._examples.settle(progress.examples or self._around.steps.records.examples)

    async def begin(self, step: int) -> StepInput:
        shown = await self._examples.chosen(seed=self._around.trainer.seed, step=step)
        chosen = StepBegun(
            trainer=self._around.steps.trainer,
            incarnation=self._around.incarnation,
            run=self._around.steps.run,
            model=self._around.model,
            step=step,
            batch_id=f"{self._kind}-{step}",
            sequence=step,
            next_offset=0,
            seed=self._around.trainer.seed,
            left_out=shown.left_out,
            examples=self._examples.count,
            **{self._kind: shown.positions},
        )
        begun = await self._around.steps.begin(chosen)
        if (said := begun.demonstrations or begun.preferences) != shown.positions:
            shown = await self._examples.at(said)
        return StepInput(begun, examples=shown.samples)


class CheckpointSink:
    does: Literal["checkpointing"] = "checkpointing"

    def __init__(self, around: TrainerContext) -> None:
        self._around = around
        self._saving: Future[Path] | None = None

    async def trained(self, begun: StepBegun, step: Trained, *, last: bool) -> None:
        await asyncio.to_thread(self._write_line, begun, step)
        # Before a checkpoint has the step: killed in between, it is trained and told of again.
        around = self._around
        await around.steps.end(begun, step.metrics, step.seconds)
        if last or begun.step % around.trainer.checkpoint_interval == 0:
            await self.settled()
            as_hf = around.trainer.saves_as_hf(last=last)
            self._saving = await around.thread.call(
                lambda: around.engine.save_checkpoint(around.directory, step.progress, as_hf=as_hf)
            )

    def _write_line(self, begun: StepBegun, step: Trained) -> None:
        with (self._around.directory / METRICS).open("a") as lines:
            what = {"step": begun.step, "batch_id": begun.batch_id, "time": time.time()}
            lines.write(json.dumps({**what, **step.metrics}) + "\n")

    async def settled(self) -> None:
        if self._saving is not None:
            await asyncio.wrap_future(self._saving)


async def train_without_batches(
    stage: Stage,
    topic: Topic,
    make_source: Callable[[TrainerContext], StepSource],
    *,
    bus: Bus,
    ranks: RankSource,
    origin: StartingPoint | None = None,
) -> None:
    async with opened(stage, topic, bus=bus, ranks=ranks, origin=origin) as around:
        source = make_source(around)
        loop = TrainingLoop(around, source, CheckpointSink(around))
        mark_ready()
        await source.open(around.engine.progress)
        await loop.run()
        await loop.finish()
