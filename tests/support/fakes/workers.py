"""Fake workers that speak the real topics: an explorer without an engine, a trainer without a model.

They keep the rules that real ones keep (orders to another incarnation are void, a result follows its durable
experiences, one answer to each order) and do no work. What they saw is public, for tests to look at.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from benchmarks._records import completed, named_group, step_trained, synced, trainer_beat
from schemas import (
    BatchRecord,
    Cancel,
    Dispatch,
    ExperienceGroup,
    ModelVersion,
    Rollout,
    VersionRefused,
    VersionWanted,
    build_group,
)
from schemas.topics import (
    BATCHES,
    COORDINATOR_EVENTS,
    EXPERIENCES,
    EXPLORER_EVENTS,
    MODEL_VERSIONS,
    ROLLOUTS,
    TRAINER_EVENTS,
)
from tests.support.fakes.mesh_records import explorer_beat
from tests.support.mesh.records import record_of
from trinity_bus.bus import Bus, Producer, Received, lane_partition
from trinity_bus.coordination import SyncPolicy

WAIT_S = 150.0


def experience(dispatch: Dispatch, version: int) -> ExperienceGroup:
    """The smallest group there is: one sample, a prompt token and a response token."""
    rollout = Rollout(prompt_token_ids=[1], response_token_ids=[2], logprobs=[-0.5], reward=1.0)
    whose = {name: getattr(dispatch, name) for name in ("attempt", "batch_type", "explorer", "incarnation")}
    named = named_group(dispatch.task.task_id, dispatch.batch_id, workflow=dispatch.task.workflow, **whose)
    return build_group([rollout], version=version, **named)


class FakeExplorer:
    """Answers every order at once, unless ``hold`` says that it keeps it for ever."""

    def __init__(
        self,
        bus: Bus,
        name: str = "explorer-0",
        *,
        slots: int = 8,
        hold: Callable[[Dispatch], bool] = lambda _: False,
        pool: str | None = None,
        fixed: bool = False,
    ) -> None:
        self.name = name
        self._pool = pool
        self._fixed = fixed
        self.version = -1
        self.orders: list[Received[Any]] = []
        self.cancelled: list[Cancel] = []
        self._bus = bus
        self._slots = slots
        self._hold = hold

    @contextlib.asynccontextmanager
    async def alive(self, incarnation: str = "life-1") -> AsyncIterator["FakeExplorer"]:
        async with (
            self._bus.producer() as producer,
            self._bus.reader(ROLLOUTS, partitions=[lane_partition(self.name)]) as lane,
            self._bus.reader(MODEL_VERSIONS) as versions,
            asyncio.TaskGroup() as group,
        ):
            tasks = [
                group.create_task(self._beat(producer, incarnation)),
                group.create_task(self._work(producer, lane, incarnation)),
                group.create_task(self._sync(producer, versions, incarnation)),
            ]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()

    async def _beat(self, producer: Producer, incarnation: str) -> None:
        while True:
            await self._say_alive(producer, incarnation)
            await asyncio.sleep(0.2)

    async def _say_alive(self, producer: Producer, incarnation: str) -> None:
        beat = explorer_beat(
            self.name,
            incarnation=incarnation,
            slots=self._slots,
            model_version=self.version,
            workflows=["math"],
            pool=self._pool,
            follows="none" if self._fixed else "trainer",
        )
        await producer.send(EXPLORER_EVENTS, self.name, beat)

    async def _work(self, producer: Producer, lane: Any, incarnation: str) -> None:
        while True:
            for received in await lane.batch(10):
                order = received.record
                if (order.explorer, order.incarnation) != (self.name, incarnation):
                    continue
                if isinstance(order, Cancel):
                    self.cancelled.append(order)
                    continue
                self.orders.append(received)
                assert self.version >= order.min_version or (self._fixed and order.min_version == 0)
                if not self._hold(order):
                    await self._answer(producer, received)

    async def _answer(self, producer: Producer, received: Received[Any]) -> None:
        order: Dispatch = record_of(received)
        position = None
        if order.batch_type == "train":
            sent = await producer.send(EXPERIENCES, order.task.task_id, experience(order, self.version))
            position = await sent
        finished = completed(
            order,
            version=self.version,
            seconds=0.001,
            batch_type=order.batch_type,
            completed_runs=1,
            total_runs=1,
            experience=position,
            samples=int(position is not None),
        )
        await producer.send(EXPLORER_EVENTS, self.name, finished, traceparent=received.traceparent)

    async def _sync(self, producer: Producer, versions: Any, incarnation: str) -> None:
        while True:
            for received in await versions.batch(10):
                version: ModelVersion = received.record
                if (self.name, incarnation) not in {(m.explorer, m.incarnation) for m in version.members}:
                    continue
                self.version = version.version
                answer = synced(version, self.name, incarnation)
                await producer.send(EXPLORER_EVENTS, self.name, answer)


class FakeTrainer:
    """Announces version 0, then "trains" each finalized train batch and announces what its policy publishes.

    It can bring back the older versions that are ``kept``.
    """

    def __init__(self, bus: Bus, policy: SyncPolicy | None = None, kept: Collection[int] = ()) -> None:
        self.published: list[int] = []
        self._policy = policy or SyncPolicy()
        self._kept = kept
        self._wanted = 0
        self.trained: list[BatchRecord] = []
        self.evaluated: list[BatchRecord] = []
        self.read_to = 0
        """Offset in ``batches`` after the last one that it trained."""
        self.needs_from: int | None = None
        """What it says that its oldest checkpoint needs."""
        self.changed = asyncio.Condition()
        self._bus = bus

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator["FakeTrainer"]:
        async with (
            self._bus.producer() as producer,
            self._bus.reader(BATCHES, start="beginning") as batches,
            self._bus.reader(COORDINATOR_EVENTS) as events,
            asyncio.TaskGroup() as group,
        ):
            await self._tell(producer, 0, publish=True)
            tasks = [
                group.create_task(self._train(producer, batches)),
                group.create_task(self._answer(producer, events)),
                group.create_task(self._beat(producer)),
            ]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()

    async def until_trained(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(lambda: len(self.trained) >= count)

    async def _train(self, producer: Producer, batches: Any) -> None:
        while True:
            for received in await batches.batch(10):
                batch = received.record
                if not isinstance(batch, BatchRecord) or batch.state != "finalized":
                    continue
                if batch.batch_type == "train":
                    self.trained.append(batch)
                    self.read_to = received.offset + 1
                    if not await self._publish_if_due(producer):
                        await self._tell(producer, batch.sequence, publish=False)
                else:
                    self.evaluated.append(batch)
                async with self.changed:
                    self.changed.notify_all()

    async def _beat(self, producer: Producer) -> None:
        while True:
            step, version = len(self.trained), self.published[-1]
            beat = trainer_beat(version, "trainer-life", step=step, needs_from=self.needs_from)
            await producer.send(TRAINER_EVENTS, "trainer-0", beat)
            await asyncio.sleep(0.2)

    async def _answer(self, producer: Producer, events: Any) -> None:
        while True:
            for received in await events.batch(10):
                wanted = received.record
                if not isinstance(wanted, VersionWanted):
                    continue
                if wanted.version is None:
                    self._wanted = max(self._wanted, wanted.at_least)
                    await self._publish_if_due(producer)
                elif wanted.version in self._kept:
                    await self._tell(producer, wanted.version, publish=True, again=True)
                else:
                    refused = VersionRefused(
                        trainer="trainer-0",
                        incarnation="trainer-life",
                        model="policy",
                        version=wanted.version,
                        reason="its checkpoint is gone",
                        available=sorted(self._kept),
                    )
                    await producer.send(TRAINER_EVENTS, "trainer-0", refused)

    async def _publish_if_due(self, producer: Producer) -> bool:
        step = len(self.trained)
        published = self.published[-1]
        due = published < step and self._policy.publishes(step, published=published, wanted=self._wanted)
        if due:
            await self._tell(producer, step, publish=True)
        return due

    async def _tell(self, producer: Producer, version: int, *, publish: bool, again: bool = False) -> None:
        if publish and not again:
            self.published.append(version)
        step = step_trained(
            version,
            "trainer-life",
            publish=publish,
            again=again,
            batch_id=None if version == 0 else f"train-{version:06d}",
            metrics={"loss": 0.5, "reward_mean": 1.0},
            checkpoint=f"/checkpoints/step-{version:08d}",
            **self.offer(version),
        )
        await (await producer.send(TRAINER_EVENTS, "trainer-0", step))

    def offer(self, version: int) -> dict[str, Any]:
        """Where a version can be had, as what: nowhere."""
        return {"checksum": f"checksum-{version}", "master_address": "127.0.0.1", "master_port": 1}
