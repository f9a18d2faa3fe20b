"""A trainer that learns from examples alone: no batches, no explorers, no versions; see ``service``.

::

    start:  load the model -> load the newest checkpoint, of this run -> what was written on `steps`
            -> find out which examples there are (workers/trainer/examples.py)
    step:   the examples of this step, by seed and number -> what of them is left out -----------------> steps
            train            (a thread; the event loop stays free)
            checkpoint       (at each `checkpoint_interval`, and after the last step)
    end:    after `total_steps`

Killed at any instant and started again it goes on from its newest checkpoint, and takes the steps since as they were
written. Nobody hears of its steps but by `steps`, metrics and the log, so nothing need be announced again.
"""

import asyncio
import logging
import time
import uuid
from pathlib import Path

from opentelemetry import trace
from opentelemetry.context import Context

from schemas import StepBegun
from schemas.topic import Topic
from schemas.topics import DEMONSTRATIONS
from trinity_bus.config import Settings
from trinity_bus.health.process import mark_ready
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import TRAINER_TIME
from trinity_bus.telemetry.occupancy import Occupancy
from trinity_bus.training import choice
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.packing import TrainSample
from workers.trainer.engine_thread import EngineThread
from workers.trainer.errors import diverged
from workers.trainer.examples import ExampleLog
from workers.trainer.observations import step_trained
from workers.trainer.step_log import StepLog

log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.trainer")


class OfflineTrainer:
    """The loop.

    Args:
        settings: Of the service.
        topic: Of the examples.
        directory: Of the checkpoints, held.
        run: The name of the run.
        thread: Of the engine.
        engine: As its newest checkpoint left it.
        examples: To learn from.
        steps: The topic ``steps``.
    """

    def __init__(
        self,
        settings: Settings,
        topic: Topic,
        *,
        directory: Path,
        run: str,
        thread: EngineThread,
        engine: TrainingEngine,
        examples: ExampleLog,
        steps: StepLog,
    ) -> None:
        self._settings = settings.trainer
        self._model = settings.mesh.model
        self._topic = topic
        self._directory = directory
        self._run = run
        self._incarnation = uuid.uuid4().hex
        self._thread = thread
        self._engine = engine
        self._examples = examples
        self._steps = steps
        self._time = Occupancy("waiting_for_batch")
        TRAINER_TIME.watch(self._time)

    async def run(self) -> None:
        """Train to the end."""
        await self._steps.replay()
        mark_ready()
        await self._examples.settle(self._engine.progress.examples or self._steps.examples)
        while not self._finished():
            await self._step()
        log.info("%d steps are trained on %s", self._engine.progress.step, self._topic.name)
        if (target := self._settings.export_dir) is not None:
            await self._thread.call(lambda: self._engine.export_hf(target))
            log.info("the trained model is in %s", target)

    def _finished(self) -> bool:
        return self._settings.total_steps is not None and self._engine.progress.step >= self._settings.total_steps

    async def _step(self) -> None:
        began, step = time.perf_counter(), self._engine.progress.step + 1
        attributes: dict[str, str | int] = {
            names.RL_STEP: step,
            names.RL_MODEL: self._model,
            names.RL_TRAINER: self._settings.name,
        }
        with (
            self._time.unit("fetching") as now,
            _tracer.start_as_current_span("train step", context=Context(), attributes=attributes),
        ):
            begun, samples = await self._begin(step)
            now.move("training")
            metrics = await self._thread.call(lambda: self._engine.train_step((), examples=samples))
            metrics |= choice.counts(begun.left_out)
            progress = self._engine.progress.model_copy(update={"examples": begun.examples})
            self._engine.progress = progress
            now.move("checkpointing")
            skipped = int(metrics["updates_skipped_in_a_row"])
            ends = skipped >= self._settings.max_skipped_updates
            if ends or self._finished() or progress.step % self._settings.checkpoint_interval == 0:
                written = await self._thread.call(lambda: self._engine.save_checkpoint(self._directory, progress))
                await asyncio.wrap_future(written)
            if ends:
                raise diverged(skipped, progress.step, self._directory)
            seconds = time.perf_counter() - began
            step_trained(self._model, step=progress.step, version=progress.version, seconds=seconds, metrics=metrics)
            log.info(
                "step %d: loss %.6g, %d %s, %d tokens, %.2f s",
                progress.step,
                metrics.get("loss", 0.0),
                metrics["examples"],
                self._topic.name,
                metrics["trained_tokens"],
                seconds,
            )

    async def _begin(self, step: int) -> tuple[StepBegun, list[TrainSample]]:
        """Return what is durable of the step that begins, and the samples that it says."""
        shown = await self._examples.chosen(seed=self._settings.seed, step=step)
        of = "demonstrations" if self._topic is DEMONSTRATIONS else "preferences"
        chosen = StepBegun(
            trainer=self._settings.name,
            incarnation=self._incarnation,
            run=self._run,
            model=self._model,
            step=step,
            batch_id=f"{of}-{step}",
            sequence=step,
            next_offset=0,
            seed=self._settings.seed,
            left_out=shown.left_out,
            examples=self._examples.count,
            **{of: shown.positions},
        )
        begun = await self._steps.begin(chosen)
        if (said := begun.demonstrations or begun.preferences) != shown.positions:
            shown = await self._examples.at(said)
        return begun, shown.samples
