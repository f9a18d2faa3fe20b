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
                                             copy weights, optimizer, generators, offset: the checkpoint is written
                                               beside the next step, and appears by one rename
                                             stage weights   (copies them; the next step may change them)
                                             StepTrained ----------------------------------------------> events
                                               when, says workers/trainer/publishing.py
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

With ``publish=durable`` a version is announced only when its checkpoint is durable, so no explorer ever serves weights
that a crash can take back; with ``staged`` at once, and the steps since the newest checkpoint are trained again.
A sample that no model could be trained on is left out (``trinity_bus/training/choice.py``). A batch that cannot be
trained on as its manifest says stops the trainer with the reason; it is passed over when an operator says so, in a
step that changes no weights.
On SIGTERM or Ctrl-C a running step is abandoned between two micro-batches, a running checkpoint is finished.

With one rank this is one process. With more (``TrainerSettings.ranks``) this process is rank 0,
and starts the others before anything else: they make every call of the engine along with it (``training/ranks.py``),
and none of the rest. It alone reads, publishes and is asked to end; a rank that dies takes it along at once.
"""

import asyncio
import logging
from pathlib import Path

from schemas import Rollback
from schemas.topics import BATCHES
from trinity_bus.bus import Bus
from trinity_bus.bus.cluster_gauges import watch_folder
from trinity_bus.config import Settings
from trinity_bus.coordination import SyncPolicy
from trinity_bus.runtime.service import first_error
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.training import checkpoint
from trinity_bus.training.ranks import followers_of
from workers.preconditions import checkpoint_dir, ensure, sync_policy
from workers.trainer.engine_thread import EngineThread
from workers.trainer.engines import load
from workers.trainer.errors import LineageEndedError
from workers.trainer.loops import Trainer

log = logging.getLogger(__name__)


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
                trainer = Trainer(
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
