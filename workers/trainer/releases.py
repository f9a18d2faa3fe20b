"""Carrying out what ``publishing`` decides: checkpoints begun and awaited, versions staged, steps told of."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from opentelemetry import trace

from trinity_bus.config import TrainerSettings
from trinity_bus.telemetry import conventions as names
from trinity_bus.training import checkpoint
from trinity_bus.training.engine import TrainingEngine
from workers.trainer.announcer import Announcer, Trained
from workers.trainer.engine_thread import EngineThread
from workers.trainer.publishing import Action, AnnounceTrained, Note, Publishing, SaveCheckpoint, StageVersion

_tracer = trace.get_tracer("workers.trainer")


class Releases:
    """The steps of one incarnation on their way to the mesh. One task at a time calls its methods.

    What waits for checkpoints runs in ``tasks``; one that cannot be written ends it.
    """

    def __init__(
        self,
        states: Publishing,
        *,
        directory: Path,
        engine: TrainingEngine,
        thread: EngineThread,
        announcer: Announcer,
        tasks: asyncio.TaskGroup,
        settings: TrainerSettings,
    ) -> None:
        self._states = states
        self._directory = directory
        self._engine = engine
        self._thread = thread
        self._announcer = announcer
        self._tasks = tasks
        self._settings = settings
        # Held from a decision until all that it says is done. A checkpoint may be whole before its version is staged,
        # or before a later step is noted: it is told of behind that.
        self._deciding = asyncio.Lock()
        self._finishing: asyncio.Task[None] | None = None
        # Those that may still be told of, and the last one
        self._steps: dict[int, Trained] = {}

    async def trained(self, step: Trained, *, publish: bool, last: bool) -> None:
        """Take the engine's step as far as it comes now; its checkpoint is written beside the next."""
        number = step.progress.step
        if self._states.must_wait(number, publish=publish, last=last):
            await self.settled()
        async with self._deciding:
            self._know(step)
            await self._do(self._states.trained(number, publish=publish, last=last), last=last)

    async def wanted(self, step: Trained) -> None:
        """Have the version of the engine's last step published, which was not when it was trained."""
        number = step.progress.step
        if number != self._states.saving and self._states.must_wait(number, publish=True):
            await self.settled()
        async with self._deciding:
            self._know(step)
            await self._do(self._states.wanted(number))

    async def settled(self) -> None:
        """Return when no checkpoint is being written, and what waited for one is told."""
        if self._finishing is not None:
            await asyncio.shield(self._finishing)

    def _know(self, step: Trained) -> None:
        oldest = step.progress.step if self._states.saving is None else self._states.saving
        self._steps = {number: other for number, other in self._steps.items() if number >= oldest}
        self._steps[step.progress.step] = step

    async def _do(self, actions: Sequence[Action], *, last: bool = False) -> None:
        for action in actions:
            step = self._steps[action.step]
            match action:
                case Note():
                    await asyncio.to_thread(checkpoint.note_told, self._directory, step.progress)
                case SaveCheckpoint():
                    await self._save(step, last=last)
                case StageVersion():
                    await self._announcer.stage(step.progress.version)
                case AnnounceTrained(publish=publish):
                    await self._announcer.tell(step, publish=publish)

    async def _save(self, step: Trained, *, last: bool) -> None:
        as_hf = self._settings.saves_as_hf(last=last)
        progress = step.progress
        with _tracer.start_as_current_span("checkpoint", attributes={names.RL_STEP: progress.step}):
            written = await self._thread.call(
                lambda: self._engine.save_checkpoint(self._directory, progress, as_hf=as_hf)
            )
        self._finishing = self._tasks.create_task(self._finish(progress.step, written), name=f"save {progress.step}")

    async def _finish(self, step: int, written: "Future[Path]") -> None:
        await asyncio.wrap_future(written)
        async with self._deciding:
            await self._do(self._states.saved(step))
