"""The trainer service.

::

    start:  lock checkpoint_dir -> load the model -> load the newest checkpoint -> stage its weights
            -> StepTrained(step, version, publish) -> read `batches` from the checkpoint's offset
               (which versions are published: trinity_bus/coordination/sync_policy.py; the first and the last always)

    batches ---- FINALIZED train batch ----> fetch the experiences that its manifest names, check them
                                             train           (a thread; the event loop stays free)
                                             checkpoint      (weights, optimizer, generators, offset: one rename)
                                             stage weights   (copies them; the next step may change them)
                                             StepTrained ----------------------------------------------> events
    model-versions -- for this life ---------> send the weights to its members       (threads, while training goes on)
    events ---------- WeightsSynced ---------> compare checksums
                      VersionWanted ---------> publish after the step under way, or now; an older version is
                                               staged again from its checkpoint (workers/trainer/announcer.py)
    every heartbeat_s ------------------------ TrainerHeartbeat ---------------------------------------> events

===========================  =========================================================================================
killed ...                   and started again
===========================  =========================================================================================
before the rename            the step is trained again from the checkpoint before it: same samples, same order, and on
                             a CPU the same loss bit for bit
after it, before the news    the checkpoint's version is announced at the start
while sending weights        the announcement is for a former life and void; the new life announces anew
another rank, at any time    this process ends with an error that names it, and is started again as above
===========================  =========================================================================================

A version is announced only when its checkpoint is durable, so no explorer ever serves weights that a crash can take
back. A batch that cannot be trained on as its manifest says stops the trainer with the reason; none is skipped.
On SIGTERM or Ctrl-C a running step is abandoned between two micro-batches, a running checkpoint is finished.

With one rank this is one process. With more (``tensor_parallel`` times ``pipeline_parallel``) this process is rank 0,
and starts the others before anything else: they make every call of the engine along with it (``training/ranks.py``),
and none of the rest. It alone reads, publishes and is asked to end; a rank that dies takes it along at once.
"""

import asyncio
import logging
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context

from schemas import (
    BatchRecord,
    ExperienceGroup,
    TrainerHeartbeat,
    VersionWanted,
    WeightsSynced,
)
from schemas.topics import BATCHES, COORDINATOR_EVENTS, EXPERIENCES, EXPLORER_EVENTS, MODEL_VERSIONS, TRAINER_EVENTS
from trinity_bus.bus import Bus, Producer, Reader, Start
from trinity_bus.config import Settings, required
from trinity_bus.coordination import SyncPolicy
from trinity_bus.errors import ConfigError, RecordGoneError
from trinity_bus.health.process import mark_ready
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import links, setup_telemetry
from trinity_bus.telemetry.metrics import TRAINER_TIME
from trinity_bus.telemetry.occupancy import Occupancy
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.ranks import followers_of
from workers.trainer.announcer import Announcer, Trained, Who
from workers.trainer.engine_thread import EngineThread
from workers.trainer.engines import load
from workers.trainer.errors import BatchError
from workers.trainer.manifest import batch_to_train, entries_to_train, groups_of, positions_of
from workers.trainer.observations import step_trained
from workers.trainer.publication import Publication, Publisher

if TYPE_CHECKING:
    from workers.trainer.engines import Engine

log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.trainer")

_POLL_S = 1.0


async def run(settings: Settings) -> None:
    """Trains until it is cancelled.

    Raises:
        ConfigError: A setting that is needed is absent.
        TrinityError: Training cannot go on; the message says why.
    """
    trainer = settings.trainer
    required(trainer.model_path, "trainer.model_path", "to know what to train")
    directory = required(trainer.checkpoint_dir, "trainer.checkpoint_dir", "to go on after a restart")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: the trainer starts its ranks itself; leave it unset, "
            "and set TRINITY_BUS_TRAINER__TENSOR_PARALLEL or TRINITY_BUS_TRAINER__PIPELINE_PARALLEL"
        )
    policy = SyncPolicy.of(settings.synchronizer, settings.coordinator)
    telemetry = setup_telemetry(
        "trainer", settings.telemetry, namespace=settings.kafka.namespace, instance=trainer.name
    )
    try:
        with checkpoint.exclusive(directory):
            await _run(settings, policy, directory)
    finally:
        telemetry.shutdown()


async def _run(settings: Settings, policy: SyncPolicy, directory: Path) -> None:
    ranks = settings.trainer.tensor_parallel * settings.trainer.pipeline_parallel
    async with (
        Bus(settings.kafka, client_id=settings.trainer.name) as bus,
        followers_of(ranks) as followers,
        EngineThread() as thread,
    ):
        await bus.ensure_topics()
        engine, publisher = await thread.call(lambda: load(settings, directory, followers))
        try:
            async with bus.producer() as producer:
                trainer = _Trainer(
                    settings,
                    policy,
                    directory=directory,
                    bus=bus,
                    producer=producer,
                    thread=thread,
                    engine=engine,
                    publisher=publisher,
                )
                await trainer.run()
        finally:
            # What runs in threads ends soon, and its result is of no use any more.
            engine.interrupt()
            publisher.close()
            await thread.call(engine.leave)


class _Trainer:
    """The loops."""

    def __init__(
        self,
        settings: Settings,
        policy: SyncPolicy,
        *,
        directory: Path,
        bus: Bus,
        producer: Producer,
        thread: EngineThread,
        engine: "Engine",
        publisher: Publisher,
    ) -> None:
        self._settings = settings.trainer
        self._model = settings.coordinator.model
        self._directory = directory
        self._bus = bus
        self._producer = producer
        self._thread = thread
        self._engine = engine
        self._publisher = publisher
        self._incarnation = uuid.uuid4().hex
        self._publication = Publication(publisher, model=self._model, incarnation=self._incarnation)
        self._policy = policy
        self._training = False
        self._time = Occupancy("waiting_for_batch")
        TRAINER_TIME.watch(self._time)
        self._stepping = asyncio.Lock()
        """Held while a step is trained or a version published: the two never mix."""
        self._wanted = 0
        """The version that was asked for last."""
        self._last = Trained()
        self._announcer = Announcer(
            Who(self._settings.name, self._incarnation, self._model),
            directory=directory,
            producer=producer,
            thread=thread,
            engine=engine,
            publisher=publisher,
            publication=self._publication,
        )

    @property
    def _progress(self) -> TrainingProgress:
        return self._engine.progress

    async def run(self) -> None:
        progress = self._progress
        start: Start = {(BATCHES.name, 0): progress.batches_offset} if progress.batches_offset else "beginning"
        async with (
            self._bus.reader(MODEL_VERSIONS, start="end") as announcements,
            self._bus.reader(EXPLORER_EVENTS, COORDINATOR_EVENTS, start="end") as events,
            self._bus.reader(BATCHES, start=start) as batches,
            asyncio.TaskGroup() as loops,
        ):
            loops.create_task(self._publication.serve(announcements), name="serve")
            loops.create_task(self._follow(events, loops), name="follow events")
            loops.create_task(self._heartbeats(), name="heartbeats")
            # The readers above have their positions: nothing that this announcement brings about is missed.
            await self._announcer.publish(self._last)
            loops.create_task(self._train(batches), name="train")
            mark_ready()

    async def _follow(self, events: Reader, loops: asyncio.TaskGroup) -> None:
        """Compares what explorers say they received, and publishes what is asked for, as long as it runs."""
        while True:
            for received in await events.batch(_POLL_S):
                match received.record:
                    case WeightsSynced() as synced:
                        self._publication.compare(synced)
                    case VersionWanted(version=None) as wanted if wanted.model == self._model:
                        loops.create_task(self._publish_wanted(wanted.at_least))
                    case VersionWanted(version=int() as version) as wanted if wanted.model == self._model:
                        loops.create_task(self._announcer.publish_again(version))

    async def _publish_wanted(self, at_least: int) -> None:
        """Publishes what the last step has made, if it is wanted; a step under way ends first and sees to it itself."""
        self._wanted = max(self._wanted, at_least)
        async with self._stepping:
            if self._due():
                progress = self._progress
                if progress.step and checkpoint.of_step(self._directory, progress.step) is None:
                    await self._checkpoint(progress)
                await self._announcer.publish(self._last)

    def _due(self) -> bool:
        """Whether the version that the last step has made is to be published."""
        progress = self._progress
        return self._announcer.published_version < progress.version and (
            self._policy.publishes(progress.version, published=self._announcer.published_version, wanted=self._wanted)
            or self._finished()
        )

    async def _train(self, batches: Reader) -> None:
        while not self._finished():
            for received in await batches.batch(_POLL_S):
                batch = batch_to_train(received, trained_sequence=self._progress.sequence)
                if batch is not None and not self._finished():
                    async with self._stepping:
                        await self._step(batch, received.offset + 1)
        log.info("%d steps are trained; serving version %d", self._progress.step, self._progress.version)
        if self._settings.export_dir is not None:
            target = self._settings.export_dir
            await self._thread.call(lambda: self._engine.export_hf(target))
            log.info("the trained model is in %s", target)

    def _finished(self) -> bool:
        return self._settings.total_steps is not None and self._progress.step >= self._settings.total_steps

    async def _step(self, batch: BatchRecord, next_offset: int) -> None:
        """Fetch, train, checkpoint, publish."""
        began = time.perf_counter()
        with (
            self._time.unit("fetching") as now,
            _tracer.start_as_current_span(
                "train step",
                context=Context(),
                links=links(batch.trace_links),
                attributes={
                    names.RL_BATCH_ID: batch.batch_id,
                    names.RL_STEP: self._engine.progress.step + 1,
                    names.RL_MODEL_VERSION: self._engine.progress.version + 1,
                    names.RL_MODEL: self._model,
                    names.RL_TRAINER: self._settings.name,
                },
            ) as span,
        ):
            groups = await self._fetch(batch)
            self._training = True
            now.move("training")
            try:
                metrics = await self._thread.call(lambda: self._engine.train_step(groups))
            finally:
                self._training = False
            span.set_attribute(names.RL_SAMPLES, int(metrics["samples_trained"]))
            if "reward_mean" in metrics:
                span.set_attribute(names.RL_REWARD_MEAN, metrics["reward_mean"])
            # The engine's step is not durable yet: if this process dies before the rename, the batch is read again.
            progress = self._engine.progress.model_copy(
                update={"batches_offset": next_offset, "sequence": batch.sequence}
            )
            self._engine.progress = progress
            publish = self._due()
            now.move("checkpointing")
            if publish or progress.step % self._settings.checkpoint_interval == 0:
                await self._checkpoint(progress)
            seconds = time.perf_counter() - began
            self._last = Trained(batch.batch_id, metrics, seconds)
            step_trained(self._model, step=progress.step, version=progress.version, seconds=seconds, metrics=metrics)
            log.info(
                "step %d, batch %s: loss %.6g, reward %.4g, %d tokens, %.2f s",
                progress.step,
                batch.batch_id,
                metrics.get("loss", 0.0),
                metrics.get("reward_mean", float("nan")),
                metrics["trained_tokens"],
                seconds,
            )
            now.move("publishing")
            await (self._announcer.publish(self._last) if publish else self._announcer.trained(self._last))

    async def _fetch(self, batch: BatchRecord) -> list[ExperienceGroup]:
        """The experiences of a batch, in the order of its manifest.

        Raises:
            BatchError: One is gone, or is not what the manifest says.
        """
        entries = entries_to_train(batch)
        positions = positions_of(batch, entries)
        if not positions:
            log.warning("batch %s: every task failed; the step leaves the weights as they are", batch.batch_id)
            return []
        try:
            fetched = await self._bus.fetch(EXPERIENCES, positions)
        except RecordGoneError as error:
            raise BatchError(f"batch {batch.batch_id} cannot be trained on: {error}") from error
        return groups_of(batch, entries, fetched)

    async def _checkpoint(self, progress: TrainingProgress) -> None:
        with _tracer.start_as_current_span("checkpoint", attributes={names.RL_STEP: progress.step}):
            await self._thread.call(lambda: self._engine.save_checkpoint(self._directory, progress))

    async def _heartbeats(self) -> None:
        host, port = self._publisher.address
        while True:
            durable = await self._producer.send(
                TRAINER_EVENTS,
                self._settings.name,
                TrainerHeartbeat(
                    trainer=self._settings.name,
                    incarnation=self._incarnation,
                    state="training" if self._training else "ready",
                    model=self._model,
                    step=self._progress.step,
                    version=self._announcer.published_version,
                    master_address=host,
                    master_port=port,
                    sent_at=time.time(),
                ),
            )
            await durable
            await asyncio.sleep(self._settings.heartbeat_s)
