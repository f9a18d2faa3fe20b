"""The trainer service.

::

    start:  lock checkpoint_dir -> load the model -> load the newest checkpoint, of this run -> stage its weights
            -> StepTrained(step, version, publish) -> read `batches` from the checkpoint's offset
               (which versions are published: trinity_bus/coordination/versions/sync_policy.py; the first and the last
               always)

    batches ---- FINALIZED train batch ----> in its turn (workers/trainer/agenda.py), unless a BatchSkipped follows it:
                                             fetch the experiences that its manifest names, check them
                                             choose what of them is trained on ----------------------> steps
                                             train           (a thread; the event loop stays free)
                                             checkpoint      (weights, optimizer, generators, offset: one rename)
                                             stage weights   (copies them; the next step may change them)
                                             StepTrained ----------------------------------------------> events
    model-versions -- for this incarnation --> send the weights to its members       (threads, while training goes on)
    events ---------- WeightsSynced ---------> compare checksums
                      VersionWanted ---------> publish after the step under way, or now; an older version is
                                               staged again from its checkpoint (workers/trainer/announcer.py)
                                               one whose lineage is to be ended: this incarnation ends, and another one
                                               begins from that checkpoint
                      Superseded ------------> ends: another trainer has begun
    every heartbeat_s ------------------------ TrainerHeartbeat ---------------------------------------> events

===========================  =========================================================================================
killed ...                   and started again
===========================  =========================================================================================
before the rename            the step is trained again from the checkpoint before it: same samples, as its record on
                             ``steps`` says, same order, and on a CPU the same loss bit for bit
after it, before the news    the checkpoint's version is announced at the start
while sending weights        the announcement is for a former incarnation and void; the new incarnation announces anew
another rank, at any time    this process ends with an error that names it, and is started again as above
===========================  =========================================================================================

A version is announced only when its checkpoint is durable, so no explorer ever serves weights that a crash can take
back. A sample that no model could be trained on is left out (``trinity_bus/training/choice.py``). A batch that cannot
be trained on as its manifest says stops the trainer with the reason; it is passed over when an operator says so, in a
step that changes no weights.
On SIGTERM or Ctrl-C a running step is abandoned between two micro-batches, a running checkpoint is finished.

With one rank this is one process. With more (``TrainerSettings.ranks``) this process is rank 0,
and starts the others before anything else: they make every call of the engine along with it (``training/ranks.py``),
and none of the rest. It alone reads, publishes and is asked to end; a rank that dies takes it along at once.
"""

import asyncio
import logging
import time
import uuid
from pathlib import Path

from opentelemetry import trace
from opentelemetry.context import Context

from schemas import (
    BatchRecord,
    ExperienceGroup,
    Rollback,
    StepBegun,
    StepGroup,
    Superseded,
    TrainerHeartbeat,
    VersionWanted,
    WeightsSynced,
)
from schemas.record import Metrics
from schemas.step import KEPT_STEPS, step_key
from schemas.topics import (
    BATCHES,
    COORDINATOR_EVENTS,
    EXPERIENCES,
    EXPLORER_EVENTS,
    MODEL_VERSIONS,
    STEPS,
    TRAINER_DEAD_LETTERS,
    TRAINER_EVENTS,
)
from schemas.trainable import Bounds
from trinity_bus.bus import Bus, Producer, Reader, Start, Undecodable
from trinity_bus.bus.cluster_gauges import watch_folder
from trinity_bus.config import Settings
from trinity_bus.coordination import SyncPolicy
from trinity_bus.errors import RecordGoneError, SupersededError
from trinity_bus.health.process import mark_ready
from trinity_bus.runtime.service import first_error
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import links, setup_telemetry
from trinity_bus.telemetry.metrics import RECORDS_LOST, TRAINER_TIME
from trinity_bus.telemetry.occupancy import Occupancy
from trinity_bus.training import checkpoint, choice
from trinity_bus.training.checkpoint import Told, TrainingProgress
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.families import read_shape
from trinity_bus.training.needs import oldest_need
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages.advantage import Advantage
from trinity_bus.training.ranks import followers_of
from workers.preconditions import checkpoint_dir, ensure, sync_policy
from workers.trainer.agenda import Agenda, Due
from workers.trainer.announcer import Announcer, Trained, TrainerIdentity
from workers.trainer.engine_thread import EngineThread
from workers.trainer.engines import load
from workers.trainer.errors import BatchError, LineageEndedError, way_out
from workers.trainer.manifest import entries_to_train, first_replayable, groups_of, positions_of
from workers.trainer.observations import step_trained
from workers.trainer.publication import Publication, Publisher
from workers.trainer.step_records import StepRecords, otherwise

log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.trainer")

_POLL_S = 1.0
_MAX_SHOWN = 8
"""Of what is left out, in a log line."""


async def run(settings: Settings) -> None:
    """Trains until it is cancelled.

    Raises:
        ConfigError: It cannot start with these settings.
        TrinityError: Training cannot go on; the message says why.
    """
    trainer = settings.trainer
    ensure("trainer", settings)
    directory, policy = checkpoint_dir(settings), sync_policy(settings)
    telemetry = setup_telemetry(
        "trainer", settings.telemetry, namespace=settings.kafka.namespace, instance=trainer.name
    )
    try:
        with checkpoint.exclusive(directory):
            watch_folder("checkpoints", directory)
            while True:
                rollback = await asyncio.to_thread(checkpoint.finish_rollback, directory)
                try:
                    await _run(settings, policy, directory, rollback)
                except BaseExceptionGroup as group:
                    ended = first_error(group)
                    if not isinstance(ended, LineageEndedError):
                        raise
                    log.warning("%s; a new incarnation begins from its checkpoint", ended)
                else:
                    return
    finally:
        telemetry.shutdown()


async def _run(settings: Settings, policy: SyncPolicy, directory: Path, rollback: Rollback | None) -> None:
    """One incarnation of the trainer.

    Raises:
        BaseExceptionGroup: What ended it; ``LineageEndedError`` where another one is to begin.
    """
    async with (
        Bus(settings.kafka, client_id=settings.trainer.name) as bus,
        followers_of(settings.trainer.ranks) as followers,
        EngineThread() as thread,
    ):
        await bus.ensure_topics()
        batches = await bus.identity(BATCHES)
        engine, publisher = await thread.call(lambda: load(settings, directory, followers, batches))
        try:
            async with bus.producer() as producer:
                trainer = _Trainer(
                    settings,
                    policy,
                    directory=directory,
                    rollback=rollback,
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
        rollback: Rollback | None,
        bus: Bus,
        producer: Producer,
        thread: EngineThread,
        engine: TrainingEngine,
        publisher: Publisher,
    ) -> None:
        self._settings = settings.trainer
        self._rollback = rollback
        self._model = settings.mesh.model
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
        self._passes_over = 0
        """The last sequence that is met once more and trained already, because positions mean nothing any more."""
        self._wanted = 0
        """The version that was asked for last."""
        self._agenda = Agenda(Told())
        self._run = checkpoint.run_name(directory)
        shape = read_shape(engine.source)
        self._bounds = Bounds(shape.vocabulary, shape.max_positions)
        self._wants_greedy = registry.make("advantage", Advantage, self._settings).wants_greedy
        self._steps = StepRecords(self._settings.name, self._run, engine.progress.step)
        self._last = Trained()
        self._announcer = Announcer(
            TrainerIdentity(self._settings.name, self._incarnation, self._model, rollback),
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
        end = (await self._bus.end_offsets(BATCHES))[0]
        if progress.batches_offset > end:
            # The log has lost records that were read, or was made anew. Sequences tell what is trained, offsets do not.
            log.error(
                "%s ends at %d, and the checkpoint would go on at %d: it is read from the beginning, and what is "
                "trained (up to number %d) is passed over",
                *(BATCHES.name, end, progress.batches_offset, progress.sequence),
            )
            self._passes_over, start = progress.sequence, "beginning"
        async with self._bus.reader(STEPS, start="beginning") as steps:
            async for received in steps.replay():
                self._steps.take(received)
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
        """Compare what explorers say they received, and publish what is asked for, as long as it runs."""
        while True:
            for received in await events.batch(_POLL_S):
                match received.record:
                    case WeightsSynced() as synced:
                        self._publication.compare(synced)
                    case VersionWanted(rollback=Rollback() as rollback) as wanted if wanted.model == self._model:
                        loops.create_task(self._announcer.end_lineage(rollback))
                    case VersionWanted(version=None) as wanted if wanted.model == self._model:
                        if wanted.at_least <= self._announcer.published_version:
                            loops.create_task(self._announcer.repeat())
                        else:
                            loops.create_task(self._publish_wanted(wanted.at_least))
                    case VersionWanted(version=int() as version) as wanted if wanted.model == self._model:
                        loops.create_task(self._announcer.publish_again(version))
                    case Superseded(service="trainer", incarnation=incarnation) if incarnation == self._incarnation:
                        raise SupersededError(
                            f"another trainer of model {self._model!r} has begun in this namespace and has this one's "
                            "place: stop one of the two, or give it its own TRINITY_BUS_MESH__NAMESPACE"
                        )

    async def _publish_wanted(self, at_least: int) -> None:
        """Publish what the last step has made, if it is wanted; a step under way ends first and sees to it itself."""
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
        told = await asyncio.to_thread(checkpoint.read_told, self._directory)
        agenda = self._agenda = Agenda(told, self._rollback, self._passes_over)
        # To the end first: what the log says of a batch may stand behind it.
        async for received in batches.replay():
            agenda.take(received)
        news = asyncio.Event()
        async with asyncio.TaskGroup() as reading:
            ahead = reading.create_task(_read_ahead(batches, agenda, news), name="read ahead")
            while not self._finished():
                news.clear()
                due = agenda.next(self._progress.sequence)
                if due is None:
                    await news.wait()
                    continue
                async with self._stepping:
                    await self._step(due)
            ahead.cancel()
        log.info("%d steps are trained; serving version %d", self._progress.step, self._progress.version)
        if self._settings.export_dir is not None:
            target = self._settings.export_dir
            await self._thread.call(lambda: self._engine.export_hf(target))
            log.info("the trained model is in %s", target)

    def _finished(self) -> bool:
        return self._settings.total_steps is not None and self._progress.step >= self._settings.total_steps

    async def _step(self, due: Due) -> None:
        """Fetch, train, checkpoint, publish; of a batch that is passed over, all but the first two."""
        began = time.perf_counter()
        batch = due.batch
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
            if due.skip is None:
                groups = await self._fetch(batch)
            else:
                groups = []
                span.set_attribute(names.RL_BATCH_SKIPPED, due.skip)
                log.warning("batch %s is passed over: %s", batch.batch_id, due.skip)
            begun = await self._begin(due, groups)
            now.move("training")
            metrics = await self._update(choice.without(groups, begun.left_out), begun.seed)
            metrics |= choice.counts(begun.left_out)
            span.set_attribute(names.RL_SAMPLES, int(metrics["samples_trained"]))
            if "reward_mean" in metrics:
                span.set_attribute(names.RL_REWARD_MEAN, metrics["reward_mean"])
            # The engine's step is not durable yet: if this process dies before the rename, the batch is read again.
            progress = self._engine.progress.model_copy(
                update={"batches_offset": due.next_offset, "sequence": batch.sequence}
            )
            if due.skip is not None:
                progress = progress.passed_over(batch.batch_id, due.skip)
            self._engine.progress = progress
            publish = self._due()
            now.move("checkpointing")
            if (skipped := int(metrics["updates_skipped_in_a_row"])) >= self._settings.max_skipped_updates:
                await self._checkpoint(progress)
                raise TrainingError(
                    f"{skipped} updates in a row, the last in step {progress.step}, were skipped because their loss or "
                    f"gradients were not finite; the state is saved in {self._directory}: lower TRINITY_BUS_TRAINER__"
                    "LEARNING_RATE, or look for broken log-probabilities"
                )
            if publish or progress.step % self._settings.checkpoint_interval == 0:
                await self._checkpoint(progress)
            else:
                await asyncio.to_thread(checkpoint.note_told, self._directory, progress)
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

    async def _begin(self, due: Due, groups: list[ExperienceGroup]) -> StepBegun:
        """Return what is durable of the step that begins: what was written of it before, or what is chosen now."""
        batch, step = due.batch, self._progress.step + 1
        entries = entries_to_train(batch) if due.skip is None else []
        limited = self._settings.limited_sampling == "train"
        chosen = StepBegun(
            trainer=self._settings.name,
            incarnation=self._incarnation,
            run=self._run,
            model=self._model,
            step=step,
            batch_id=batch.batch_id,
            sequence=batch.sequence,
            next_offset=due.next_offset,
            seed=self._settings.seed,
            groups=[StepGroup(task_id=entry.task_id, parts=entry.parts) for entry in entries],
            left_out=choice.left_out(groups, self._bounds, train_limited=limited, wants_greedy=self._wants_greedy),
            skipped=due.skip,
        )
        begun = self._steps.binding(chosen)
        if begun is None:
            begun = chosen
            await (await self._producer.send(STEPS, step_key(self._settings.name, step), chosen))
            if step > KEPT_STEPS:
                await self._producer.send_raw(STEPS, step_key(self._settings.name, step - KEPT_STEPS), None)
        else:
            log.info("step %d was begun before, by %s: it is taken as then", step, begun.incarnation)
            if differs := otherwise(begun, chosen):
                log.warning(
                    "step %d is taken as its record says, not as the settings would have it now: %s", step, differs
                )
        if begun.left_out:
            total = sum(len(one.samples) for one in begun.left_out)
            shown = "; ".join(
                f"task {one.task_id}, sample {one.samples[0]}: {one.detail}" for one in begun.left_out[:_MAX_SHOWN]
            )
            log.warning("step %d leaves out %d samples: %s", step, total, shown)
        return begun

    async def _update(self, groups: list[ExperienceGroup], seed: int) -> Metrics:
        """Return a step of the engine; without groups it changes no weights."""
        self._training = True
        try:
            return await self._thread.call(lambda: self._engine.train_step(groups, seed=seed))
        finally:
            self._training = False

    async def _fetch(self, batch: BatchRecord) -> list[ExperienceGroup]:
        """Return the experiences of a batch, in the order of its manifest.

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
            RECORDS_LOST.add(1, {names.MESSAGING_DESTINATION_TEMPLATE: EXPERIENCES.name})
            kept = first_replayable(self._agenda.following(), await self._bus.beginning_offsets(EXPERIENCES))
            left = (
                "no later one is known that can be"
                if kept is None
                else f"the first that can still be is {kept.sequence}"
            )
            raise BatchError(
                f"batch {batch.batch_id}, step {batch.sequence}, cannot be trained on: {error}; {left}; "
                f"{way_out(batch.batch_id)}"
            ) from error
        for met in self._bus.passed_over():
            if isinstance(met.record, Undecodable):
                await self._producer.send_dead_letter(
                    met, met.record.reason, met.record.detail, to=TRAINER_DEAD_LETTERS
                )
        return groups_of(batch, entries, fetched)

    async def _checkpoint(self, progress: TrainingProgress) -> None:
        with _tracer.start_as_current_span("checkpoint", attributes={names.RL_STEP: progress.step}):
            await self._thread.call(lambda: self._engine.save_checkpoint(self._directory, progress))

    async def _needs_from(self) -> int:
        # Offsets of older checkpoints are of another log: nothing is to be deleted by them.
        return 0 if self._passes_over else await asyncio.to_thread(oldest_need, self._directory)

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
                    needs_from=await self._needs_from(),
                    sent_at=time.time(),
                ),
            )
            await durable
            await asyncio.sleep(self._settings.heartbeat_s)


async def _read_ahead(batches: Reader, agenda: Agenda, news: asyncio.Event) -> None:
    while True:
        for received in await batches.batch(_POLL_S):
            agenda.take(received)
            news.set()
