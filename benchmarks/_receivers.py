"""Explorers for measuring weight sync: one without an engine, and a stopwatch for one with an engine."""

import asyncio
import time
import uuid
from collections.abc import Iterable
from typing import Any

import torch

from schemas import ExplorerHeartbeat, Member, ModelVersion
from schemas.topics import MODEL_VERSIONS
from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.inference.weight_sync import SyncOutcome
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.transport import source_of
from workers.explorer.heartbeats import Heartbeats
from workers.explorer.outcome import ExplorerIdentity
from workers.explorer.weights import ServedVersion, WeightFollower


class BareReceiver:
    """Stands for an engine: takes versions as a worker of one does, loads nothing, generates nothing."""

    def __init__(self, sync_timeout_s: float = 30.0) -> None:
        self._receiver = WeightReceiver()
        self._sync_timeout_s = sync_timeout_s

    async def take(self, announced: ModelVersion, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Do with a version that has arrived what is to be done: nothing."""

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[TransferProgress] = loop.create_future()
        where = source_of(announced, member.explorer, self._sync_timeout_s)

        def on_end(progress: TransferProgress) -> None:
            # Nobody waits for it any more when another version has ended this one.
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(progress))

        self._receiver.cancel()
        self._receiver.start(where, on_end)
        try:
            progress = await ended
        except asyncio.CancelledError:
            self._receiver.cancel()
            raise
        if progress.state != "ready":
            self._receiver.cancel()
            raise WeightTransferError(progress.error)
        await self.take(announced, self._receiver.take())
        return SyncOutcome(
            checksum=progress.checksum,
            control_s=progress.posted_at - began,
            transfer_s=progress.received_at - progress.posted_at,
            pause_s=0.0,
            verify_s=progress.verified_at - progress.received_at,
        )


class Timed:
    """An engine, and the moment of the last first byte, by the clock of the machine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.first_byte_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        began = time.time()
        outcome: SyncOutcome = await self._engine.sync_weights(announced, member)
        self.first_byte_at = began + outcome.control_s
        return outcome


async def follow(settings: Settings, bus: Bus, engine: Any) -> None:
    """Note that what an explorer does about weights, and nothing else of it."""
    who = ExplorerIdentity(explorer=settings.explorer.name, incarnation=uuid.uuid4().hex, model=settings.mesh.model)
    served = ServedVersion()

    def heartbeat(state: Any) -> ExplorerHeartbeat:
        return ExplorerHeartbeat(
            explorer=who.explorer, incarnation=who.incarnation, state=state, slots=1, model_version=served.version
        )

    async with bus.producer() as producer, bus.reader(MODEL_VERSIONS, start="beginning") as versions:
        heartbeats = Heartbeats(producer, interval_s=settings.explorer.heartbeat_s, make=heartbeat, settings={})
        follower = WeightFollower(engine, producer, who, served=served, heartbeats=heartbeats)
        async with asyncio.TaskGroup() as loops:
            loops.create_task(heartbeats.run())
            loops.create_task(follower.run(versions))
