"""Carrying out the release policy: checkpoints begun and awaited, versions staged and served, steps announced.

::

    a step is to be told of ----------------> StepTrained
    a version is staged, and told of -------> StepTrained(publish)      when, says ``release_policy``
    a heartbeat told of a version that nobody
    has heard of: it is wanted -------------> the same StepTrained(publish) once more
    an older version is wanted
        its checkpoint is kept -- staged ---> StepTrained(again), while training goes on
        it is gone -------------------------> VersionRefused, with the versions that are kept
    what came after a version is discarded -> this incarnation ends, and a new one begins from its checkpoint
    ModelVersion for this incarnation ------> its members are let in, and take it themselves
    WeightsSynced of a version served here -> its checksum is compared with the one that was sent

Staging packs, in the engine's thread where the weights are the engine's, and copies what no file will have. The
checkpoint of a version that was brought back is held until another one is brought back, so that it is not removed while
explorers may be told to take it.

An explorer that reports other bytes than were sent does not serve the version. The coordinator, which compares as well,
counts it as failed and names it in the next round; here it is an error in the log, a counter, and a metric of the next
step, because a wire or a memory that changes bytes wants an operator.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from opentelemetry import metrics, trace

from schemas import ModelVersion, Rollback, StepTrained, VersionRefused, WeightsSynced
from schemas.topics import TRAINER_EVENTS
from trinity_bus.bus import Reader
from trinity_bus.errors import TrinityError
from trinity_bus.telemetry import conventions as names
from trinity_bus.training import checkpoint
from trinity_bus.training.errors import CheckpointError
from workers.trainer.engines import PublishedTensors, Publisher
from workers.trainer.release_policy import Action, AnnounceTrained, Note, ReleasePolicy, SaveCheckpoint, StageVersion
from workers.trainer.training_loop import Trained, TrainerContext

log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.trainer")
_MISMATCHES = metrics.get_meter("workers.trainer").create_counter(
    "rl.weight_sync.mismatches", unit="{version}", description="Versions that an explorer received with other bytes."
)
_POLL_S = 1.0
# Versions whose checksums are kept: answers to older ones say nothing about what is served now.
_REMEMBERED = 16


class LineageEndedError(TrinityError):
    """An operator has ended the lineage of this incarnation: a new one begins, from an older version."""


class ServedVersions:
    def __init__(self, server: Publisher, *, model: str, incarnation: str) -> None:
        self._server = server
        self._model = model
        self._incarnation = incarnation
        self._checksums: dict[int, str] = {}
        # From the start, or to a collector the first one would be no rise.
        _MISMATCHES.add(0)
        # Answers with other bytes than were sent, since the start
        self.mismatches = 0

    def add(self, version: int, checksum: str) -> None:
        self._checksums[version] = checksum
        for old in list(self._checksums)[:-_REMEMBERED]:
            del self._checksums[old]

    def checksum(self, version: int) -> str:
        return self._checksums[version]

    async def serve(self, announcements: Reader) -> None:
        while True:
            for received in await announcements.batch(_POLL_S):
                match received.record:
                    case ModelVersion(model=self._model, trainer_incarnation=self._incarnation) as version:
                        self._server.admit(version, received.traceparent)
                        self._server.keep(version.version)

    def compare(self, synced: WeightsSynced) -> bool:
        """Whether an answer is in order, as one is that tells of a failure, or of a version of another incarnation."""
        sent = self._checksums.get(synced.version)
        if synced.model != self._model or not synced.ok or sent is None or synced.checksum == sent:
            return True
        self.mismatches += 1
        _MISMATCHES.add(1)
        log.error(
            "explorer %s received version %d (epoch %d) with checksum %s, it was sent with %s: it must take it again; "
            "look at its memory and at the network between",
            synced.explorer,
            synced.version,
            synced.epoch,
            synced.checksum or "(none)",
            sent,
        )
        return False


class VersionPublisher:
    """What waits for checkpoints runs in ``tasks``; one that cannot be written ends it.

    One task at a time calls :meth:`trained` and :meth:`wanted`.
    """

    def __init__(
        self,
        around: TrainerContext,
        *,
        rollback: Rollback | None,
        tensors: PublishedTensors,
        publisher: Publisher,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._around = around
        self._directory = around.directory
        self._engine = around.engine
        self._policy = ReleasePolicy(
            around.trainer.publish, around.trainer.checkpoint_interval, durable=around.engine.progress.step
        )
        self._rollback = rollback
        self._tensors = tensors
        self._publisher = publisher
        self._tasks = tasks
        self.served = ServedVersions(publisher, model=around.model, incarnation=around.incarnation)
        # Held from a decision until all that it says is done. A checkpoint may be whole before its version is staged,
        # or before a later step is noted: it is told of behind that.
        self._deciding = asyncio.Lock()
        self._finishing: asyncio.Task[None] | None = None
        # Those that may still be told of, and the last one
        self._steps: dict[int, Trained] = {}
        self._staging = asyncio.Lock()
        self._held = contextlib.ExitStack()
        # Of versions that are staged and not told of
        self._spans: dict[int, trace.Span] = {}
        # The newest version that is published, or about to be
        self.staged_version = -1
        self.published_version = -1
        self._published: StepTrained | None = None

    async def trained(self, step: Trained, *, publish: bool, last: bool) -> None:
        """Take the engine's step as far as it comes now; its checkpoint is written beside the next."""
        number = step.progress.step
        if self._policy.must_wait(number, publish=publish, last=last):
            await self.settled()
        async with self._deciding:
            self._remember(step)
            await self._do(self._policy.trained(number, publish=publish, last=last), last=last)

    async def wanted(self, step: Trained) -> None:
        """Have the version of the engine's last step published, which was not when it was trained."""
        number = step.progress.step
        if number != self._policy.saving and self._policy.must_wait(number, publish=True):
            await self.settled()
        async with self._deciding:
            self._remember(step)
            await self._do(self._policy.wanted(number))

    async def settled(self) -> None:
        """Return when no checkpoint is being written, and what waited for one is told."""
        if self._finishing is not None:
            await asyncio.shield(self._finishing)

    async def stage(self, version: int) -> None:
        with _tracer.start_as_current_span(
            "publish version", attributes={names.RL_MODEL_VERSION: version, names.RL_MODEL: self._around.model}
        ) as span:
            async with self._staging:
                folder = self._tensors.folder_of(self._directory, version)
                checksum = await self._around.thread.call(
                    lambda: self._publisher.stage(version, self._tensors.now(), folder)
                )
        self.served.add(version, checksum)
        self._spans[version] = span
        self.staged_version = version

    async def announce(self, step: Trained, *, publish: bool) -> None:
        version = step.progress.version
        if not publish:
            await self._send(step, publish=False)
            return
        # Whoever takes the version does so for the reason that it was staged for.
        with trace.use_span(self._spans.pop(version), record_exception=False, set_status_on_exception=False):
            await asyncio.to_thread(self._publisher.durable, version)
            await self._send(step, publish=True, checksum=self.served.checksum(version))
        # Heartbeats tell of it only behind this: the coordinator asks for what it has not heard of.
        self.published_version = version

    async def repeat(self) -> None:
        if self._published is not None:
            log.warning("telling of version %d once more: nobody has heard of it", self._published.version)
            await self._tell(self._published)

    async def publish_again(self, version: int) -> None:
        """Make an older version available, or tell that it is gone."""
        try:
            checksum = await self._stage_again(version)
        except CheckpointError as error:
            await self._refuse(version, error)
            return
        # It may be announced only when attempts have ended that need newer weights; more may be published until then.
        self._publisher.keep(version)
        self.served.add(version, checksum)
        log.info("version %d can be had again", version)
        await self._send(Trained(self._engine.progress), publish=True, checksum=checksum, again=version)

    async def end_lineage(self, rollback: Rollback) -> None:
        """Begin a rollback with LineageEndedError, or tell that its version is gone."""
        try:
            await asyncio.to_thread(checkpoint.begin_rollback, self._directory, rollback)
        except CheckpointError as error:
            await self._refuse(rollback.to, error)
            return
        raise LineageEndedError(f"rolled back to version {rollback.to}: {rollback.reason}")

    def _remember(self, step: Trained) -> None:
        oldest = step.progress.step if self._policy.saving is None else self._policy.saving
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
                    await self.stage(step.progress.version)
                case AnnounceTrained(publish=publish):
                    await self.announce(step, publish=publish)

    async def _save(self, step: Trained, *, last: bool) -> None:
        as_hf = self._around.trainer.saves_as_hf(last=last)
        progress = step.progress
        with _tracer.start_as_current_span("checkpoint", attributes={names.RL_STEP: progress.step}):
            written = await self._around.thread.call(
                lambda: self._engine.save_checkpoint(self._directory, progress, as_hf=as_hf)
            )
        self._finishing = self._tasks.create_task(self._finish(progress.step, written), name=f"save {progress.step}")

    async def _finish(self, step: int, written: "Future[Path]") -> None:
        await asyncio.wrap_future(written)
        async with self._deciding:
            await self._do(self._policy.saved(step))

    async def _refuse(self, version: int, error: CheckpointError) -> None:
        await self._tell(
            VersionRefused(
                trainer=self._around.trainer.name,
                incarnation=self._around.incarnation,
                model=self._around.model,
                version=version,
                reason=str(error),
                available=sorted({*checkpoint.steps(self._directory), self.published_version}),
            )
        )

    async def _stage_again(self, version: int) -> str:
        if version == self.published_version:
            return self.served.checksum(version)
        folder = checkpoint.of_step(self._directory, version)
        if folder is None:
            raise CheckpointError("its checkpoint is gone; trainer.keep_checkpoints says how many are kept")
        with contextlib.ExitStack() as held:
            held.enter_context(checkpoint.held(folder))
            await asyncio.to_thread(checkpoint.verify, folder, lambda name: name == self._tensors.file)
            async with self._staging:
                # Not before: the names of tensors are made anew while a version is staged.
                tensors = self._tensors.of_checkpoint(folder)
                kept = self._tensors.folder_of(self._directory, version)
                checksum = await asyncio.to_thread(self._publisher.stage, version, tensors, kept)
                await asyncio.to_thread(self._publisher.durable, version)
            self._held.close()
            self._held = held.pop_all()
        return checksum

    async def _send(self, last: Trained, *, publish: bool, checksum: str = "", again: int | None = None) -> None:
        host, port = self._publisher.address
        progress = last.progress
        folder = checkpoint.latest(self._directory) if again is None else checkpoint.of_step(self._directory, again)
        step = StepTrained(
            trainer=self._around.trainer.name,
            writer=self._around.steps.trainer,
            incarnation=self._around.incarnation,
            model=self._around.model,
            step=progress.step if again is None else again,
            version=progress.version if again is None else again,
            publish=publish,
            again=again is not None,
            method=self._publisher.method,
            batch_id=last.batch_id,
            metrics={**last.metrics, "weights_mismatched": float(self.served.mismatches)},
            checksum=checksum,
            master_address=host,
            master_port=port,
            checkpoint=None if folder is None else str(folder.resolve()),
            seconds=last.seconds,
            skipped=[batch for batch in progress.skipped if again is None or batch.step <= again],
            rollback=self._rollback,
            dtype=str(self._engine.dtype).removeprefix("torch."),
            source=progress.source,
        )
        if publish and again is None:
            self._published = step
        await self._tell(step)

    async def _tell(self, news: StepTrained | VersionRefused) -> None:
        await (await self._around.producer.send(TRAINER_EVENTS, self._around.trainer.name, news))
