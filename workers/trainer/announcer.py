"""Telling the mesh what was trained, and which versions can be had.

::

    a step is to be told of ----------------> StepTrained
    a version is staged, and told of -------> StepTrained(publish)      when, says ``publishing``
    a heartbeat told of a version that nobody
    has heard of: it is wanted -------------> the same StepTrained(publish) once more
    an older version is wanted
        its checkpoint is kept -- staged ---> StepTrained(again), while training goes on
        it is gone -------------------------> VersionRefused, with the versions that are kept
    what came after a version is discarded -> this incarnation ends, and a new one begins from its checkpoint

Staging packs, in the engine's thread where the weights are the engine's, and copies what no file will have. The
checkpoint of a version that was brought back is held until another one is brought back, so that it is not removed while
explorers may be told to take it.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry import trace

from schemas import Rollback, StepTrained, VersionRefused
from schemas.record import Metrics
from schemas.topics import TRAINER_EVENTS
from trinity_bus.bus import Producer
from trinity_bus.telemetry import conventions as names
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import CheckpointError
from workers.trainer.engine_thread import EngineThread
from workers.trainer.errors import LineageEndedError
from workers.trainer.publication import Publication, Publisher
from workers.trainer.published import PublishedTensors

log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.trainer")


@dataclass(frozen=True, slots=True)
class TrainerIdentity:
    trainer: str
    # Its name on ``steps``
    writer: str
    incarnation: str
    model: str
    rollback: Rollback | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    progress: TrainingProgress
    batch_id: str | None = None
    metrics: Metrics = field(default_factory=dict)
    seconds: float = 0.0


class Announcer:
    """Stages and announces versions."""

    def __init__(
        self,
        who: TrainerIdentity,
        *,
        directory: Path,
        producer: Producer,
        thread: EngineThread,
        engine: TrainingEngine,
        published: PublishedTensors,
        publisher: Publisher,
        publication: Publication,
    ) -> None:
        self._who = who
        self._directory = directory
        self._producer = producer
        self._thread = thread
        self._engine = engine
        self._weights = published
        self._publisher = publisher
        self._publication = publication
        self._staging = asyncio.Lock()
        self._held = contextlib.ExitStack()
        # Of versions that are staged and not told of
        self._spans: dict[int, trace.Span] = {}
        # The newest version that is published, or about to be
        self.staged_version = -1
        self.published_version = -1
        self._published: StepTrained | None = None

    async def stage(self, version: int) -> None:
        with _tracer.start_as_current_span(
            "publish version", attributes={names.RL_MODEL_VERSION: version, names.RL_MODEL: self._who.model}
        ) as span:
            async with self._staging:
                folder = self._weights.folder_of(self._directory, version)
                checksum = await self._thread.call(lambda: self._publisher.stage(version, self._weights.now(), folder))
        self._publication.published(version, checksum)
        self._spans[version] = span
        self.staged_version = version

    async def tell(self, step: Trained, *, publish: bool) -> None:
        version = step.progress.version
        if not publish:
            await self._tell(step, publish=False)
            return
        # Whoever takes the version does so for the reason that it was staged for.
        with trace.use_span(self._spans.pop(version), record_exception=False, set_status_on_exception=False):
            await asyncio.to_thread(self._publisher.durable, version)
            await self._tell(step, publish=True, checksum=self._publication.checksum(version))
        # Heartbeats tell of it only behind this: the coordinator asks for what it has not heard of.
        self.published_version = version

    async def repeat(self) -> None:
        """Somebody who should have heard of the newest version has not."""
        if self._published is not None:
            log.warning("telling of version %d once more: nobody has heard of it", self._published.version)
            await (await self._producer.send(TRAINER_EVENTS, self._who.trainer, self._published))

    async def publish_again(self, version: int) -> None:
        """Make an older version available, or tell that it is gone."""
        try:
            checksum = await self._stage_again(version)
        except CheckpointError as error:
            await self._refuse(version, error)
            return
        # It may be announced only when attempts have ended that need newer weights; more may be published until then.
        self._publisher.keep(version)
        self._publication.published(version, checksum)
        log.info("version %d can be had again", version)
        await self._tell(Trained(self._engine.progress), publish=True, checksum=checksum, again=version)

    async def end_lineage(self, rollback: Rollback) -> None:
        """Begin a rollback with LineageEndedError, or tell that its version is gone."""
        try:
            await asyncio.to_thread(checkpoint.begin_rollback, self._directory, rollback)
        except CheckpointError as error:
            await self._refuse(rollback.to, error)
            return
        raise LineageEndedError(f"rolled back to version {rollback.to}: {rollback.reason}")

    async def _refuse(self, version: int, error: CheckpointError) -> None:
        kept = {*checkpoint.steps(self._directory), self.published_version}
        refused = VersionRefused(
            trainer=self._who.trainer,
            incarnation=self._who.incarnation,
            model=self._who.model,
            version=version,
            reason=str(error),
            available=sorted(kept),
        )
        await (await self._producer.send(TRAINER_EVENTS, self._who.trainer, refused))

    async def _stage_again(self, version: int) -> str:
        if version == self.published_version:
            return self._publication.checksum(version)
        folder = checkpoint.of_step(self._directory, version)
        if folder is None:
            raise CheckpointError("its checkpoint is gone; trainer.keep_checkpoints says how many are kept")
        with contextlib.ExitStack() as held:
            held.enter_context(checkpoint.held(folder))
            await asyncio.to_thread(checkpoint.verify, folder, lambda name: name == self._weights.file)
            async with self._staging:
                # Not before: the names of tensors are made anew while a version is staged.
                tensors = self._weights.of_checkpoint(folder)
                kept = self._weights.folder_of(self._directory, version)
                checksum = await asyncio.to_thread(self._publisher.stage, version, tensors, kept)
                await asyncio.to_thread(self._publisher.durable, version)
            self._held.close()
            self._held = held.pop_all()
        return checksum

    async def _tell(self, last: Trained, *, publish: bool, checksum: str = "", again: int | None = None) -> None:
        host, port = self._publisher.address
        progress = last.progress
        folder = checkpoint.latest(self._directory) if again is None else checkpoint.of_step(self._directory, again)
        step = StepTrained(
            trainer=self._who.trainer,
            writer=self._who.writer,
            incarnation=self._who.incarnation,
            model=self._who.model,
            step=progress.step if again is None else again,
            version=progress.version if again is None else again,
            publish=publish,
            again=again is not None,
            method=self._publisher.method,
            batch_id=last.batch_id,
            metrics={**last.metrics, "weights_mismatched": float(self._publication.mismatches)},
            checksum=checksum,
            master_address=host,
            master_port=port,
            checkpoint=None if folder is None else str(folder.resolve()),
            seconds=last.seconds,
            skipped=[batch for batch in progress.skipped if again is None or batch.step <= again],
            rollback=self._who.rollback,
            dtype=str(self._engine.dtype).removeprefix("torch."),
            source=progress.source,
        )
        if publish and again is None:
            self._published = step
        await (await self._producer.send(TRAINER_EVENTS, self._who.trainer, step))
