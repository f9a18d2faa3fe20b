"""Following the announced model versions: taking over those that this explorer is named for.

::

    IDLE --announcement that names this incarnation-> SYNCING --served--> WeightsSynced(ok), IDLE
                                                  |--failed-------> WeightsSynced(not ok, why), IDLE
                                                  +--superseded---> (no answer), SYNCING or IDLE

There is at most one transfer. An announcement that names other members ends it too: this incarnation is not wanted in
it. Those members may take the version from here, where it is the one that the engine has.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from schemas import Member, ModelVersion, WeightsSynced
from schemas.topics import EXPLORER_EVENTS
from trinity_bus.bus import Producer, Reader, Received
from trinity_bus.runners.engine import ExplorerEngine
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import parent_context
from trinity_bus.telemetry.metrics import WEIGHT_SYNC_DURATION, WEIGHT_SYNC_PAUSE
from trinity_bus.weights.errors import WeightTransferError
from workers.explorer.heartbeats import Heartbeats
from workers.explorer.outcome import MAX_ERROR_CHARS, ExplorerIdentity


def newest(records: Iterable[Any], model: str) -> ModelVersion | None:
    """Return the last announcement of ``model``: the topic is compacted, the last record is the present."""
    found = None
    for record in records:
        if isinstance(record, ModelVersion) and record.model == model:
            found = record
    return found


def membership(announced: ModelVersion, explorer: str, incarnation: str) -> Member | None:
    """Return this incarnation of the explorer among the members, if it is one. Who is not named does not move."""
    for member in announced.members:
        if (member.explorer, member.incarnation) == (explorer, incarnation):
            return member
    return None


def supersedes(announced: ModelVersion, under_way: ModelVersion) -> bool:
    """Whether an announcement ends a transfer that is under way: every one that is not its mere repetition does."""
    what = (announced.trainer_incarnation, announced.epoch, announced.version)
    return what != (under_way.trainer_incarnation, under_way.epoch, under_way.version)


class ServedVersion:
    """A version that only its owner changes, and anybody can wait for; -1 for none."""

    def __init__(self, version: int = -1, *, fixed: bool = False) -> None:
        self._version = version
        self._fixed = fixed
        self._changed = asyncio.Event()

    @property
    def version(self) -> int:
        return self._version

    def set(self, version: int) -> None:
        """Another version is served. It may be older: a trainer that starts anew may go back."""
        self._version = version
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for(self, at_least: int) -> None:
        """Return as soon as a version of at least this is served; at once where it stays as it is."""
        while self._version < at_least and not self._fixed:
            await self._changed.wait()


_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("workers.explorer")

_POLL_S = 1.0
_TOLD = ("checksum", "control_s", "transfer_s", "verify_s", "prepare_s", "pause_s")  # of what a sync came to


@dataclass(eq=False)
class WeightFollower:
    engine: ExplorerEngine
    producer: Producer
    who: ExplorerIdentity
    _: KW_ONLY
    served: ServedVersion
    heartbeats: Heartbeats

    def __post_init__(self) -> None:
        self._announced: ModelVersion | None = None
        self._sync: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def beside(self, announcements: Reader) -> AsyncIterator[asyncio.Task[None]]:
        """Provide a task that follows; it ends with the block. That it has failed before is then a line in the log."""
        following = asyncio.create_task(self.run(announcements), name="weights")
        try:
            yield following
        finally:
            # What is being loaded is loaded.
            following.cancel()
            await asyncio.wait([following])
            if not following.cancelled() and (error := following.exception()) is not None:
                _log.warning("versions were not followed to the end: %s", error)

    async def run(self, announcements: Reader) -> None:
        """Follow ``model-versions``, from the beginning, until cancelled; EngineDeadError, BusError."""
        try:
            while True:
                await self._take(await self._next(announcements))
        finally:
            await self._end_sync()

    async def _next(self, announcements: Reader) -> list[Received[ModelVersion]]:
        # What the transfer under way raises meanwhile is raised here.
        reading = asyncio.ensure_future(announcements.batch(_POLL_S))
        try:
            if self._sync is not None:
                await asyncio.wait([reading, self._sync], return_when=asyncio.FIRST_COMPLETED)
                if self._sync.done():
                    sync, self._sync = self._sync, None
                    sync.result()
            return await reading
        finally:
            # A batch that is cancelled loses nothing.
            reading.cancel()

    async def _take(self, received: list[Received[ModelVersion]]) -> None:
        announced = newest((item.record for item in received), self.who.model)
        if announced is None or (self._announced is not None and not supersedes(announced, self._announced)):
            return
        self._announced = announced
        await self._end_sync()
        member = membership(announced, self.who.explorer, self.who.incarnation)
        if member is None:
            return
        parent = next(item.traceparent for item in reversed(received) if item.record is announced)
        self._sync = asyncio.create_task(self._follow(announced, member, parent), name=f"sync {announced.version}")

    async def _end_sync(self) -> None:
        sync, self._sync = self._sync, None
        if sync is None:
            return
        sync.cancel()
        await asyncio.wait([sync])
        if not sync.cancelled():
            sync.result()

    async def _follow(self, announced: ModelVersion, member: Member, parent: str | None) -> None:
        began = time.perf_counter()
        with _tracer.start_as_current_span(
            "sync weights",
            context=parent_context(parent),
            kind=SpanKind.CONSUMER,
            attributes={
                names.RL_MODEL: announced.model,
                names.RL_MODEL_VERSION: announced.version,
                names.RL_WEIGHT_SYNC_EPOCH: announced.epoch,
                names.RL_EXPLORER: self.who.explorer,
            },
        ) as span:
            if self.served.version < 0 and self.heartbeats.state != "draining":
                self.heartbeats.set_state("syncing")
            try:
                answer = await self._sync_once(announced, member)
            finally:
                if self.heartbeats.state == "syncing":
                    self.heartbeats.set_state("ready")
            if answer.ok:
                self.served.set(announced.version)
                self.heartbeats.tell()
                WEIGHT_SYNC_DURATION.record(time.perf_counter() - began, {names.RL_MODEL: announced.model})
                WEIGHT_SYNC_PAUSE.record(answer.pause_s, {names.RL_MODEL: announced.model})
                _log.info(
                    "serving version %d: control %.3f s, transfer %.3f s, pause %.3f s",
                    announced.version,
                    answer.control_s,
                    answer.transfer_s,
                    answer.pause_s,
                )
            else:
                span.set_status(Status(StatusCode.ERROR, answer.error))
                _log.warning("version %d was not taken: %s", announced.version, answer.error)
            await (await self.producer.send(EXPLORER_EVENTS, self.who.explorer, answer))

    async def _sync_once(self, announced: ModelVersion, member: Member) -> WeightsSynced:
        answer = WeightsSynced(
            explorer=self.who.explorer,
            incarnation=self.who.incarnation,
            model=announced.model,
            version=announced.version,
            epoch=announced.epoch,
            ok=False,
        )
        try:
            outcome = await self.engine.sync_weights(announced, member)
        except WeightTransferError as error:
            return answer.model_copy(update={"error": f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]})
        return answer.model_copy(update={"ok": True, **{name: getattr(outcome, name) for name in _TOLD}})
