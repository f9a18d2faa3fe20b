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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from schemas import Rollback
from schemas.topic import Topic
from schemas.topics import BATCHES, DEMONSTRATIONS, PREFERENCES, STEPS
from trinity_bus import awake
from trinity_bus.bus import Bus
from trinity_bus.bus.administration.cluster_gauges import watch_folder
from trinity_bus.config import Settings, WrongSettingsError
from trinity_bus.coordination import SyncPolicy
from trinity_bus.errors import ConfigError
from trinity_bus.runtime.service import first_error, in_daemon_thread
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.training import checkpoint, layout_rules
from trinity_bus.training.checkpoint.mirror import CheckpointMirror
from trinity_bus.training.errors import CheckpointError, ParallelError
from trinity_bus.training.families import read_shape
from trinity_bus.training.objectives import Need
from trinity_bus.training.ranks.followers import RankSource
from trinity_bus.training.stages import Stage, stages_of
from workers.preconditions import checkpoint_dir, ensure, initial_model, refusals, sync_policy
from workers.trainer.engines import check, open_publisher
from workers.trainer.launched_ranks import ranks_of
from workers.trainer.loops import Trainer
from workers.trainer.training_loop import opened
from workers.trainer.version_publisher import LineageEndedError
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
            if topic is BATCHES and stage.settings.trainer.role != "shadow":
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
    if kind == "experiences" and not stage.is_last:
        raise ConfigError(
            f"it learns from batches, with trainer.loss={settings.loss!r}; only the last of trainer.stages can"
        )
    if kind != "experiences" and settings.strategy != "default":
        raise ConfigError(
            f"trainer.loss={settings.loss!r} learns from {kind} alone: leave trainer.strategy at 'default'"
        )
    return {"experiences": BATCHES, "demonstrations": DEMONSTRATIONS, "preferences": PREFERENCES}[kind]


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
    async with _bus_of(stage) as bus, bus.reader(STEPS, start="beginning") as steps:
        await train_without_batches(stage, topic, lambda around: ShadowSteps(around, steps), bus=bus, ranks=ranks)


async def _run(stage: Stage, policy: SyncPolicy, rollback: Rollback | None, ranks: RankSource) -> None:
    settings = stage.settings
    async with (
        _bus_of(stage) as bus,
        opened(stage, BATCHES, bus=bus, ranks=ranks, reach=settings.trainer.reach) as around,
    ):
        publisher = await around.thread.call(lambda: open_publisher(settings, stage.directory, around.engine))
        try:
            await Trainer(around, policy, rollback=rollback, publisher=publisher).run()
        finally:
            # What runs in threads ends soon, and its result is of no use any more.
            around.engine.interrupt()
            publisher.close()
