"""The loops of one incarnation of the trainer; see ``service`` for what they say to whom."""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.context import Context

from schemas import BatchRecord, ExperienceGroup, Rollback, Superseded, TrainerHeartbeat, VersionWanted, WeightsSynced
from schemas.record import Metrics
from schemas.topics import BATCHES, COORDINATOR_EVENTS, EXPLORER_EVENTS, MODEL_VERSIONS, TRAINER_EVENTS
from schemas.trainable import Bounds
from trinity_bus.bus import Bus, Producer, Reader, Start
from trinity_bus.config import Settings, told_settings
from trinity_bus.coordination import SyncPolicy
from trinity_bus.errors import SupersededError
from trinity_bus.health.process import mark_ready, watching
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import links
from trinity_bus.telemetry.metrics import TRAINER_TIME
from trinity_bus.telemetry.occupancy import Occupancy
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import AnnouncedSteps, TrainingProgress
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.families import read_shape
from trinity_bus.training.needs import oldest_need
from trinity_bus.training.packing import TrainSample
from trinity_bus.training.token_figures import SampleFigures
from workers.trainer.batch_schedule import BatchSchedule, Due
from workers.trainer.engine_thread import EngineThread
from workers.trainer.errors import diverged
from workers.trainer.examples import ExampleLog
from workers.trainer.figure_log import FigureLog
from workers.trainer.observations import of_record, step_trained
from workers.trainer.published_tensors import Publisher, published_of
from workers.trainer.step_inputs import StepInputs
from workers.trainer.step_log import StepLog
from workers.trainer.version_publisher import Trained, TrainerIdentity, VersionPublisher

log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.trainer")

_POLL_S = 1.0
_GATHER_S = 0.1


class Trainer:
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
        steps: StepLog,
        figures: FigureLog,
        examples: ExampleLog | None,
    ) -> None:
        self._settings = settings.trainer
        self._told_settings = told_settings(settings, "mesh", "trainer", "synchronizer")
        self._rollback = rollback
        self._model = settings.mesh.model
        self._directory = directory
        self._bus = bus
        self._producer = producer
        self._thread = thread
        self._engine = engine
        self._publisher = publisher
        self._figures = figures
        self._incarnation = uuid.uuid4().hex
        who = self._who = TrainerIdentity(self._settings.name, steps.trainer, self._incarnation, self._model, rollback)
        self._policy = policy
        self._training = False
        self._time = Occupancy("waiting_for_batch")
        TRAINER_TIME.watch(self._time)
        # Held while a step is trained or a version published: the two never mix
        self._stepping = asyncio.Lock()
        # The last sequence that is met once more and trained already, because positions mean nothing any more.
        self._passes_over = 0
        # The version that was asked for last
        self._wanted = 0
        self._agenda = BatchSchedule(AnnouncedSteps())
        shape = read_shape(engine.source)
        self._inputs = StepInputs(
            self._settings,
            who,
            bounds=Bounds(
                shape.vocabulary, shape.max_positions, experts=shape.experts if settings.trainer.router_replay else 0
            ),
            following=self._following,
            steps=steps,
            examples=examples,
            bus=bus,
            producer=producer,
        )
        self._last = Trained(engine.progress)
        self._tensors = published_of(engine, settings)

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
        await self._inputs.replay()
        async with (
            self._bus.reader(MODEL_VERSIONS, start="end") as announcements,
            # Of what explorers say, most is of single rollouts: nobody waits for what is looked for among it.
            self._bus.reader(EXPLORER_EVENTS, start="end", gather_s=_GATHER_S) as synced,
            self._bus.reader(COORDINATOR_EVENTS, start="end") as wishes,
            self._bus.reader(BATCHES, start=start) as batches,
            asyncio.TaskGroup() as loops,
        ):
            versions = self._versions = VersionPublisher(
                self._who,
                self._settings,
                directory=self._directory,
                producer=self._producer,
                thread=self._thread,
                engine=self._engine,
                tensors=self._tensors,
                publisher=self._publisher,
                tasks=loops,
            )
            loops.create_task(versions.served.serve(announcements), name="serve")
            loops.create_task(self._follow(synced, loops), name="follow explorers")
            loops.create_task(self._follow(wishes, loops), name="follow the coordinator")
            loops.create_task(self._heartbeats(), name="heartbeats")
            # The readers above have their positions: nothing that this announcement brings about is missed.
            await versions.wanted(self._last)
            loops.create_task(self._train(batches), name="train")
            mark_ready()

    async def _follow(self, events: Reader, loops: asyncio.TaskGroup) -> None:
        while True:
            for received in await events.batch(_POLL_S):
                match received.record:
                    case WeightsSynced() as synced:
                        self._versions.served.compare(synced)
                    case VersionWanted(rollback=Rollback() as rollback) as wanted if wanted.model == self._model:
                        loops.create_task(self._versions.end_lineage(rollback))
                    case VersionWanted(version=None) as wanted if wanted.model == self._model:
                        if wanted.at_least <= self._versions.published_version:
                            loops.create_task(self._versions.repeat())
                        else:
                            loops.create_task(self._publish_wanted(wanted.at_least))
                    case VersionWanted(version=int() as version) as wanted if wanted.model == self._model:
                        loops.create_task(self._versions.publish_again(version))
                    case Superseded(service="trainer", incarnation=incarnation) if incarnation == self._incarnation:
                        raise SupersededError(
                            f"another trainer of model {self._model!r} has begun in this namespace and has this one's "
                            "place: stop one of the two, or give it its own TRINITY_BUS_MESH__NAMESPACE"
                        )

    async def _publish_wanted(self, at_least: int) -> None:
        self._wanted = max(self._wanted, at_least)
        async with self._stepping:
            if self._due():
                await self._versions.wanted(self._last)

    def _due(self) -> bool:
        progress = self._progress
        staged = self._versions.staged_version
        return staged < progress.version and (
            self._policy.publishes(progress.version, published=staged, wanted=self._wanted) or self._finished()
        )

    async def _train(self, batches: Reader) -> None:
        await self._inputs.settle_examples(self._progress.examples)
        told = await asyncio.to_thread(checkpoint.read_told, self._directory)
        agenda = self._agenda = BatchSchedule(told, self._rollback, self._passes_over)
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
                    # Not watched while it trains: nobody waits for what is read then.
                    with watching("the batches", batches.keeps_up):
                        await news.wait()
                    continue
                async with self._stepping:
                    await self._step(due)
            ahead.cancel()
        await self._versions.settled()
        log.info("%d steps are trained; serving version %d", self._progress.step, self._progress.version)
        if self._settings.export_dir is not None:
            target = self._settings.export_dir
            await self._thread.call(lambda: self._engine.export_hf(target))
            log.info("the trained model is in %s", target)

    def _following(self) -> Iterator[BatchRecord]:
        # Of the agenda of now: another one is made when it is known what was told before.
        return self._agenda.following()

    def _finished(self) -> bool:
        return self._settings.is_done(self._progress.step)

    async def _step(self, due: Due) -> None:
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
                groups = await self._inputs.fetch(batch)
            else:
                groups = []
                span.set_attribute(names.RL_BATCH_SKIPPED, due.skip)
                log.warning("batch %s is passed over: %s", batch.batch_id, due.skip)
            begun, trained, shown = await self._inputs.begin(due, self._progress.step + 1, groups)
            now.move("training")
            metrics, by_token = await self._update(trained, shown, begun.seed)
            self._figures.offer(begun, by_token)
            metrics |= of_record(begun)
            span.set_attribute(names.RL_SAMPLES, int(metrics["samples_trained"]))
            if "reward_mean" in metrics:
                span.set_attribute(names.RL_REWARD_MEAN, metrics["reward_mean"])
            # The engine's step is not durable yet: if this process dies before the rename, the batch is read again.
            progress = self._engine.progress.model_copy(
                update={"batches_offset": due.next_offset, "sequence": batch.sequence, "examples": begun.examples}
            )
            if due.skip is not None:
                progress = progress.passed_over(batch.batch_id, due.skip)
            self._engine.progress = progress
            seconds = time.perf_counter() - began
            self._last = Trained(progress, batch.batch_id, metrics, seconds)
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
            skipped = int(metrics["updates_skipped_in_a_row"])
            ends = skipped >= self._settings.max_skipped_updates
            await self._versions.trained(self._last, publish=self._due(), last=ends or self._finished())
            if ends:
                await self._versions.settled()
                raise diverged(skipped, progress.step, self._directory)

    async def _update(
        self, groups: list[ExperienceGroup], shown: Sequence[TrainSample], seed: int
    ) -> tuple[Metrics, list[SampleFigures]]:
        self._training = True
        try:
            return await self._thread.call(
                lambda: (self._engine.train_step(groups, seed=seed, examples=shown), self._engine.take_figures())
            )
        finally:
            self._training = False

    async def _needs_from(self) -> int:
        # Offsets of older checkpoints are of another log: nothing is to be deleted by them.
        if self._passes_over:
            return 0
        return self._inputs.needs_from(await asyncio.to_thread(oldest_need, self._directory))

    async def _heartbeats(self) -> None:
        host, port = self._publisher.address
        told = self._told_settings
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


async def _read_ahead(batches: Reader, agenda: BatchSchedule, news: asyncio.Event) -> None:
    while True:
        for received in await batches.batch(_POLL_S):
            agenda.take(received)
            news.set()
