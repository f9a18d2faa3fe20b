"""The trainer service.

::

    start:  lock checkpoint_dir -> fetch the newest checkpoint, where checkpoint_url has what the folder has not
               (trinity_bus/training/checkpoint/mirror.py)
            -> load the model -> load the newest checkpoint, of this run -> stage its weights
            -> StepTrained(step, version, publish) -> read `batches` from the checkpoint's offset
               (which versions are published: trinity_bus/coordination/sync_policy.py; the first and the last
               always)

    batches ---- FINALIZED train batch ----> in its turn (``batch_schedule.py``), unless a BatchSkipped follows it:
                                             fetch the experiences that its manifest names, check them
                                             choose what of them is trained on ----------------------> steps
                                             train           (a thread; the event loop stays free)
                                             begin a checkpoint: weights, optimizer, generators, offset are written
                                               beside the next step's passes, and it appears by one rename
                                             stage weights   (hashes them; copies where no checkpoint will have them)
                                             StepTrained ----------------------------------------------> events
                                               when, says workers/trainer/release_policy.py
    model-versions -- for this incarnation --> send the weights to its members       (threads, while training goes on)
    events ---------- WeightsSynced ---------> compare checksums
                      VersionWanted ---------> publish after the step under way, or now; an older version is
                                               staged again from its checkpoint (workers/trainer/version_publisher.py)
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

A batch that cannot be trained on as its manifest says stops the trainer with the reason; it is passed over when an
operator says so, in a step that changes no weights. A loss that learns from examples, and one that follows another
trainer, publish nothing (``without_batches.py``). Stages (``trinity_bus/training/stages.py``) are trainers of examples
one after another, and perhaps one as above as the last.

On SIGTERM or Ctrl-C a running step is abandoned between two micro-batches, a running checkpoint is finished. With more
than one rank this process is rank 0. It starts the others itself, or a launcher such as ``torchrun`` does
(``launched_ranks.py``): they make every call of the engine along with it (``training/ranks/followers.py``), and none of
the rest. A rank that dies takes it along at once.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from opentelemetry import trace

from schemas import Rollback, StepBegun, Superseded, TrainerHeartbeat, VersionWanted, WeightsSynced, topics
from schemas.groups.trainable import Bounds
from schemas.topic import Topic
from trinity_bus import awake
from trinity_bus.bus import Bus, Reader, Start
from trinity_bus.bus.administration.cluster_gauges import watch_folder
from trinity_bus.config import Settings, WrongSettingsError, told_settings
from trinity_bus.coordination import SyncPolicy
from trinity_bus.errors import ConfigError, SupersededError
from trinity_bus.health.process import mark_ready
from trinity_bus.runtime.service import first_error, in_daemon_thread
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.training import checkpoint, layout_rules
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.checkpoint.listing import oldest_need
from trinity_bus.training.checkpoint.mirror import CheckpointMirror
from trinity_bus.training.errors import CheckpointError, ParallelError
from trinity_bus.training.families import read_shape
from trinity_bus.training.objectives import Need
from trinity_bus.training.ranks.followers import RankSource
from trinity_bus.training.stages import Stage, stages_of
from workers.preconditions import checkpoint_dir, ensure, initial_model, refusals, sync_policy
from workers.trainer.batch_schedule import BatchSchedule
from workers.trainer.batch_steps import BatchSteps
from workers.trainer.engines import PublishedTensors, Publisher, check, open_publisher
from workers.trainer.launched_ranks import ranks_of
from workers.trainer.training_loop import Trained, TrainerContext, TrainingLoop, opened
from workers.trainer.version_publisher import LineageEndedError, VersionPublisher
from workers.trainer.without_batches import ExampleSteps, ShadowSteps, train_without_batches

log = logging.getLogger(__name__)

_AT_ONCE_S: Final = 10.0


async def run(settings: Settings) -> None:
    """Trains until it is cancelled, or until nothing is left to be learned from examples."""
    trainer = settings.trainer
    ensure("trainer", settings)
    policy, stages = sync_policy(settings), await asyncio.to_thread(planned, settings)
    telemetry = setup_telemetry(
        "trainer", settings.telemetry, namespace=settings.kafka.namespace, instance=trainer.name
    )
    try:
        async with ranks_of(settings) as ranks:
            await _train(stages, policy, ranks)
    finally:
        telemetry.shutdown()


async def _train(stages: Sequence[tuple[Stage, Topic]], policy: SyncPolicy, ranks: RankSource) -> None:
    model: Path | None = None
    for plan, topic in stages:
        stage = plan if model is None else plan.starting_from(model)
        if stage.name:
            log.info("stage %s, in %s, learns from %s", stage.name, stage.directory, topic.name)
        with checkpoint.exclusive(stage.directory):
            watch_folder("checkpoints", stage.directory)
            if topic is topics.BATCHES and stage.settings.trainer.role != "shadow":
                await _follow_batches(stage, policy, ranks)
                return
            async with _mirrored(stage):
                if stage.settings.trainer.role == "shadow":
                    await _shadow(topic, stage, ranks)
                    return
                model = await _learn_from(topic, stage, ranks)


@asynccontextmanager
async def _mirrored(stage: Stage) -> AsyncIterator[None]:
    """Copy checkpoints to ``trainer.checkpoint_url``, the last one too, unless an error ends the block."""
    if stage.url is None:
        yield
        return
    mirror = CheckpointMirror(stage.directory, stage.url, keep=stage.settings.trainer.keep_checkpoints)
    try:
        await in_daemon_thread(mirror.open, name="open mirror")
    except BaseException:
        mirror.finish(at_once=True)
        raise
    running = asyncio.create_task(in_daemon_thread(mirror.run, name="mirror"))
    limit_s: float | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            # It is to go on when these tasks are cancelled.
            tasks.create_task(_ended(running))
            yield
            mirror.finish()
    except BaseException as error:
        if first_error(error) is not None:
            limit_s = _AT_ONCE_S
        mirror.finish(at_once=limit_s is not None)
        raise
    finally:
        # A call to the store that hangs must not keep it from ending by its own error.
        try:
            async with awake.timeout(limit_s):
                await _ended(running)
        except TimeoutError:
            log.warning("%s does not answer, and is left", stage.url)


async def _ended(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)


@asynccontextmanager
async def _bus_of(stage: Stage) -> AsyncIterator[Bus]:
    settings = stage.settings
    async with Bus(settings.kafka, client_id=settings.trainer.name, patient=True) as bus:
        await bus.ensure_topics()
        yield bus


def planned(settings: Settings) -> list[tuple[Stage, Topic]]:
    """Check all stages before the first begins: what is wrong with the last would else be known days later."""
    stages = stages_of(settings, checkpoint_dir(settings))
    if found := [_of(stage, why) for stage in stages if stage.name for why in refusals("trainer", stage.settings)]:
        raise WrongSettingsError(found)
    # A stage's model is of the shape that the first one begins with.
    shape = read_shape(initial_model(settings.mesh.model_path))
    topics = []
    for stage in stages:
        trainer = stage.settings.trainer
        try:
            topics.append(learned_from(stage))
            layout_rules.check(trainer, shape, trainer.engine)
        except (ConfigError, ParallelError) as error:
            raise type(error)(_of(stage, str(error))) from error
    return list(zip(stages, topics, strict=True))


def _of(stage: Stage, why: str) -> str:
    return f"trainer.stages: {stage.name}: {why}" if stage.name else why


def learned_from(stage: Stage) -> Topic:
    """Return what a stage learns from; ConfigError where it cannot. Imports its objective, and torch with it."""
    # Here, since it imports torch: this module is imported by who trains nothing.
    from trinity_bus.training.objectives.objective import Objective

    settings = stage.settings.trainer
    objective = Objective(settings)
    kind = objective.learns_from
    if Need.PAIRS in objective.needs and kind != "preferences":
        raise ConfigError(f"trainer.loss={settings.loss!r} needs pairs, and learns from {kind}, which have none")
    if kind == "experiences":
        if not stage.is_last:
            raise ConfigError(
                f"it learns from batches, with trainer.loss={settings.loss!r}; only the last of trainer.stages can"
            )
        return topics.BATCHES
    if settings.strategy != "default":
        raise ConfigError(
            f"trainer.loss={settings.loss!r} learns from {kind} alone: leave trainer.strategy at 'default'"
        )
    return topics.PREFERENCES if kind == "preferences" else topics.DEMONSTRATIONS


async def _follow_batches(stage: Stage, policy: SyncPolicy, ranks: RankSource) -> None:
    while True:
        try:
            async with _mirrored(stage):
                rollback = await asyncio.to_thread(checkpoint.finish_rollback, stage.directory)
                await _run(stage, policy, rollback, ranks)
        except BaseExceptionGroup as group:
            ended = first_error(group)
            if not isinstance(ended, LineageEndedError):
                raise
            log.warning("%s; a new incarnation begins from its checkpoint", ended)
        else:
            return


async def _learn_from(topic: Topic, stage: Stage, ranks: RankSource) -> Path:
    settings, directory = stage.settings, stage.directory
    async with _bus_of(stage) as bus:
        last = max(checkpoint.steps(directory), default=0)
        if settings.trainer.is_done(last):
            await asyncio.to_thread(check, settings, directory, await bus.identity(topic))
            log.info("its %d steps are trained", last)
        else:
            await train_without_batches(stage, topic, ExampleSteps, bus=bus, ranks=ranks)
    found = checkpoint.latest(directory)
    if found is None:
        raise CheckpointError(f"{directory} has no checkpoint, though its steps are trained")
    return found


async def _shadow(topic: Topic, stage: Stage, ranks: RankSource) -> None:
    async with _bus_of(stage) as bus, bus.reader(topics.STEPS, start="beginning") as steps:
        await train_without_batches(stage, topic, lambda around: ShadowSteps(around, steps), bus=bus, ranks=ranks)


async def _run(stage: Stage, policy: SyncPolicy, rollback: Rollback | None, ranks: RankSource) -> None:
    settings = stage.settings
    async with (
        _bus_of(stage) as bus,
        opened(stage, topics.BATCHES, bus=bus, ranks=ranks, reach=settings.trainer.reach) as around,
    ):
        publisher = await around.thread.call(lambda: open_publisher(settings, stage.directory, around.engine))
        try:
            await Trainer(around, policy, rollback=rollback, publisher=publisher).run()
        finally:
            # What runs in threads ends soon, and its result is of no use any more.
            around.engine.interrupt()
            publisher.close()


_POLL_S = 1.0
_GATHER_S = 0.1


class Trainer:
    """One incarnation on batches, beside its training loop."""

    does: Literal["publishing"] = "publishing"

    def __init__(
        self,
        around: TrainerContext,
        policy: SyncPolicy,
        *,
        rollback: Rollback | None,
        publisher: Publisher,
    ) -> None:
        self._around = around
        self._settings = around.trainer
        self._rollback = rollback
        self._publisher = publisher
        self._policy = policy
        # The last sequence that is met once more and trained already, because positions mean nothing any more.
        self._passes_over = 0
        # The version that was asked for last
        self._wanted = 0
        self._last = Trained(around.engine.progress)

    @property
    def _progress(self) -> TrainingProgress:
        return self._around.engine.progress

    async def run(self) -> None:
        around, progress = self._around, self._progress
        start: Start = {(topics.BATCHES.name, 0): progress.batches_offset} if progress.batches_offset else "beginning"
        end = (await around.bus.end_offsets(topics.BATCHES))[0]
        if progress.batches_offset > end:
            # The log has lost records that were read, or was made anew. Sequences tell what is trained, offsets do not.
            log.error(
                "%s ends at %d, and the checkpoint would go on at %d: it is read from the beginning, and what is "
                "trained (up to number %d) is passed over",
                *(topics.BATCHES.name, end, progress.batches_offset, progress.sequence),
            )
            self._passes_over, start = progress.sequence, "beginning"
        told = await asyncio.to_thread(checkpoint.read_told, around.directory)
        async with (
            around.bus.reader(topics.MODEL_VERSIONS, start="end") as announcements,
            # Of what explorers say, most is of single rollouts: nobody waits for what is looked for among it.
            around.bus.reader(topics.EXPLORER_EVENTS, start="end", gather_s=_GATHER_S) as synced,
            around.bus.reader(topics.COORDINATOR_EVENTS, start="end") as wishes,
            around.bus.reader(topics.BATCHES, start=start) as batches,
            asyncio.TaskGroup() as loops,
        ):
            versions = self._versions = VersionPublisher(
                around,
                rollback=self._rollback,
                tensors=PublishedTensors(around.engine, around.settings),
                publisher=self._publisher,
                tasks=loops,
            )
            shape = read_shape(around.engine.source)
            experts = shape.experts if self._settings.router_replay else 0
            source = BatchSteps(
                around,
                bounds=Bounds(shape.vocabulary, shape.max_positions, experts=experts),
                schedule=BatchSchedule(told, self._rollback, self._passes_over),
                batches=batches,
            )
            self._loop = TrainingLoop(around, source, self)
            loops.create_task(versions.served.serve(announcements), name="serve")
            loops.create_task(self._follow(synced, loops), name="follow explorers")
            loops.create_task(self._follow(wishes, loops), name="follow the coordinator")
            loops.create_task(self._heartbeats(), name="heartbeats")
            # The readers above have their positions: nothing that this announcement brings about is missed.
            await versions.wanted(self._last)
            loops.create_task(self._train(source), name="train")
            mark_ready()

    async def _follow(self, events: Reader, loops: asyncio.TaskGroup) -> None:
        model, own = self._around.model, self._around.incarnation
        while True:
            for received in await events.batch(_POLL_S):
                match received.record:
                    case WeightsSynced() as synced:
                        self._versions.served.compare(synced)
                    case VersionWanted(rollback=Rollback() as rollback) as wanted if wanted.model == model:
                        loops.create_task(self._versions.end_lineage(rollback))
                    case VersionWanted(version=None) as wanted if wanted.model == model:
                        if wanted.at_least <= self._versions.published_version:
                            loops.create_task(self._versions.repeat())
                        else:
                            loops.create_task(self._publish_wanted(wanted.at_least))
                    case VersionWanted(version=int() as version) as wanted if wanted.model == model:
                        loops.create_task(self._versions.publish_again(version))
                    case Superseded(service="trainer", incarnation=incarnation) if incarnation == own:
                        raise SupersededError(
                            f"another trainer of model {model!r} has begun in this namespace and has this one's "
                            "place: stop one of the two, or give it its own TRINITY_BUS_MESH__NAMESPACE"
                        )

    async def _publish_wanted(self, at_least: int) -> None:
        self._wanted = max(self._wanted, at_least)
        async with self._loop.stepping:
            if self._due():
                await self._versions.wanted(self._last)

    def _due(self) -> bool:
        progress = self._progress
        staged = self._versions.staged_version
        return staged < progress.version and (
            self._policy.publishes(progress.version, published=staged, wanted=self._wanted)
            or self._settings.is_done(progress.step)
        )

    async def _train(self, source: BatchSteps) -> None:
        await source.open(self._progress)
        async with asyncio.TaskGroup() as reading:
            ahead = reading.create_task(source.read_ahead(), name="read ahead")
            await self._loop.run()
            ahead.cancel()
        await self._loop.finish()
        log.info("serving version %d", self._progress.version)

    async def trained(self, _begun: StepBegun, step: Trained, *, last: bool) -> None:
        span = trace.get_current_span()
        span.set_attribute(names.RL_SAMPLES, int(step.metrics["samples_trained"]))
        if "reward_mean" in step.metrics:
            span.set_attribute(names.RL_REWARD_MEAN, step.metrics["reward_mean"])
        self._last = step
        await self._versions.trained(step, publish=self._due(), last=last)

    async def settled(self) -> None:
        await self._versions.settled()

    async def _needs_from(self) -> int:
        # Offsets of older checkpoints are of another log: nothing is to be deleted by them.
        if self._passes_over:
            return 0
        is_mirrored = self._settings.checkpoint_url is not None
        oldest = await asyncio.to_thread(oldest_need, self._around.directory, mirrored=is_mirrored)
        return self._around.steps.records.needs_from(oldest)

    async def _heartbeats(self) -> None:
        host, port = self._publisher.address
        around = self._around
        told = told_settings(around.settings, "mesh", "trainer", "synchronizer")
        while True:
            durable = await around.producer.send(
                topics.TRAINER_EVENTS,
                self._settings.name,
                TrainerHeartbeat(
                    trainer=self._settings.name,
                    incarnation=around.incarnation,
                    state="training" if self._loop.is_training else "done" if self._loop.is_finished else "ready",
                    model=around.model,
                    step=self._progress.step,
                    version=self._versions.published_version,
                    master_address=host,
                    master_port=port,
                    needs_from=await self._needs_from(),
                    sent_at=time.time(),
                    settings=told,
                ),
            )
            await durable
            told = {}
            await asyncio.sleep(self._settings.heartbeat_s)
