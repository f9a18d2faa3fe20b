"""One incarnation of the trainer on batches, beside its training loop; see ``service`` for what it says to whom."""

import asyncio
import logging
import time
from typing import Literal

from opentelemetry import trace

from schemas import Rollback, StepBegun, Superseded, TrainerHeartbeat, VersionWanted, WeightsSynced
from schemas.groups.trainable import Bounds
from schemas.topics import BATCHES, COORDINATOR_EVENTS, EXPLORER_EVENTS, MODEL_VERSIONS, TRAINER_EVENTS
from trinity_bus.bus import Reader, Start
from trinity_bus.config import told_settings
from trinity_bus.coordination import SyncPolicy
from trinity_bus.errors import SupersededError
from trinity_bus.health.process import mark_ready
from trinity_bus.telemetry import conventions as names
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.checkpoint.listing import oldest_need
from trinity_bus.training.families import read_shape
from workers.trainer.batch_schedule import BatchSchedule
from workers.trainer.batch_steps import BatchSteps
from workers.trainer.engines import PublishedTensors, Publisher
from workers.trainer.training_loop import Trained, TrainerContext, TrainingLoop
from workers.trainer.version_publisher import VersionPublisher

log = logging.getLogger(__name__)

_POLL_S = 1.0
_GATHER_S = 0.1


class Trainer:
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
        start: Start = {(BATCHES.name, 0): progress.batches_offset} if progress.batches_offset else "beginning"
        end = (await around.bus.end_offsets(BATCHES))[0]
        if progress.batches_offset > end:
            # The log has lost records that were read, or was made anew. Sequences tell what is trained, offsets do not.
            log.error(
                "%s ends at %d, and the checkpoint would go on at %d: it is read from the beginning, and what is "
                "trained (up to number %d) is passed over",
                *(BATCHES.name, end, progress.batches_offset, progress.sequence),
            )
            self._passes_over, start = progress.sequence, "beginning"
        told = await asyncio.to_thread(checkpoint.read_told, around.directory)
        async with (
            around.bus.reader(MODEL_VERSIONS, start="end") as announcements,
            # Of what explorers say, most is of single rollouts: nobody waits for what is looked for among it.
            around.bus.reader(EXPLORER_EVENTS, start="end", gather_s=_GATHER_S) as synced,
            around.bus.reader(COORDINATOR_EVENTS, start="end") as wishes,
            around.bus.reader(BATCHES, start=start) as batches,
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
                TRAINER_EVENTS,
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
