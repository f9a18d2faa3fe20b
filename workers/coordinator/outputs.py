"""The machine's effects as records of the open transaction."""

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.trace import Span

from schemas import CoordinatorHeartbeat
from schemas.codec import encode
from schemas.headers import CONTENT_TYPE, MSGPACK, TRACEPARENT
from schemas.topic import Topic
from schemas.topics import (
    BATCHES,
    COORDINATOR_EVENTS,
    COORDINATOR_STATE,
    MODEL_VERSIONS,
    REPLIES,
    RESULTS,
    ROLLOUTS,
    TASKS,
    VERSION_HISTORY,
)
from trinity_bus.bus import Producer, Received, Undecodable
from trinity_bus.coordination import (
    AnnounceVersion,
    Dismiss,
    Effect,
    Leader,
    Observe,
    Origin,
    PublishBatch,
    PublishResult,
    RecordVersion,
    RejectTask,
    RequestVersion,
    SendOrder,
    SendReply,
    Skip,
    TellPace,
    retention,
)
from trinity_bus.coordination.versions import history
from trinity_bus.telemetry import traceparent
from workers.coordinator import observations
from workers.coordinator.changelog import INPUTS_KEY, LEADER_KEY, Positions, pack_leader, pack_positions
from workers.coordinator.input_errors import REASON
from workers.coordinator.lanes import Lanes
from workers.coordinator.spans import Spans

log = logging.getLogger("workers.coordinator")

type Originals = Mapping[Origin, Received[Any]]  # tasks as they came, of those that were read just now


class Outputs:
    """Writes to the open transaction of a producer."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def carry_out(self, effects: Iterable[Effect], originals: Originals, spans: Spans, lanes: Lanes) -> None:
        """Write what the machine has decided, in its order."""
        for effect in effects:
            match effect:
                case SendOrder(record=record, traceparent=parent, lane=lane):
                    span = spans.dispatch(record, parent)
                    await self._producer.send(
                        ROLLOUTS,
                        record.explorer,
                        record,
                        partition=await lanes.of(record.explorer, lane),
                        traceparent=_context(span, parent),
                    )
                case PublishBatch(record=moved):
                    await self._producer.send(BATCHES, moved.batch_id, moved)
                    observations.batch_moved(moved)
                case PublishResult(record=result, traceparent=parent):
                    await self._producer.send(RESULTS, result.task_id, result, traceparent=parent)
                    observations.answered(result)
                case SendReply(record=reply, traceparent=parent):
                    await self._producer.send(REPLIES, reply.client, reply, traceparent=parent)
                case Skip() | Dismiss() | TellPace():
                    await self._tell_service(effect, lanes)
                case AnnounceVersion() | RequestVersion() | RecordVersion():
                    await self._tell_of_version(effect, spans)
                case RejectTask():
                    received = originals.get(effect.origin) or as_received(effect)
                    await self._producer.send_dead_letter(received, effect.refusal.value, effect.detail)
                case Observe():
                    observations.observe(effect)

    async def _tell_service(self, effect: Skip | Dismiss | TellPace, lanes: Lanes) -> None:
        match effect:
            case Skip(record=skipped):
                # Beside the batch's own record, which compaction must not take: no identifier has a blank.
                await self._producer.send(BATCHES, f"skip {skipped.batch_id}", skipped)
                log.warning("batch %s is to be passed over: %s", skipped.batch_id, skipped.reason)
            case TellPace(record=told, lane=lane):
                partition = await lanes.of(told.explorer, lane)
                await self._producer.send(ROLLOUTS, told.explorer, told, partition=partition)
            case Dismiss(record=over, lane=lane) if over.service == "explorer":
                partition = await lanes.of(over.name, lane)
                await self._producer.send(ROLLOUTS, over.name, over, partition=partition)
            case Dismiss(record=over):
                await self._producer.send(COORDINATOR_EVENTS, over.name, over)

    async def _tell_of_version(self, effect: AnnounceVersion | RequestVersion | RecordVersion, spans: Spans) -> None:
        match effect:
            case AnnounceVersion(record=version, traceparent=parent):
                span = spans.announce(version, parent)
                # Here, because the machine decides the same on the same inputs, and this must not be foreseen.
                told = version.model_copy(update={"secret": secrets.token_hex(32)})
                await self._producer.send(MODEL_VERSIONS, version.model, told, traceparent=_context(span, parent))
                observations.announced(version)
            case RequestVersion(record=wanted):
                asked = wanted.model_copy(update={"sent_at": time.time()})
                await self._producer.send(COORDINATOR_EVENTS, wanted.model, asked)
            case RecordVersion(record=published):
                await self._producer.send(VERSION_HISTORY, history.key(published), published)

    async def refuse(
        self, unreadable: Iterable[Received[Any]], failed_inputs: Iterable[tuple[Received[Any], str]]
    ) -> None:
        """Write a dead letter for each record that its codec refuses, and for each input that raised an exception."""
        for received, detail in failed_inputs:
            await self._producer.send_dead_letter(received, REASON, detail)
        for received in unreadable:
            if isinstance(received.record, Undecodable):
                await self._producer.send_dead_letter(received, received.record.reason, received.record.detail)

    async def record_changes(self, changes: Iterable[tuple[str, bytes | None]], positions: Positions) -> None:
        entries = (*changes, (INPUTS_KEY, pack_positions(positions)))
        await self._producer.send_all(COORDINATOR_STATE, entries, partition=0)

    async def forget(self, keys: Iterable[tuple[Topic, str]]) -> None:
        for topic, key in keys:
            await self._producer.send_raw(topic, key, None)

    async def tell_leader(self, leader: Leader) -> None:
        """Write to the changelog who works: the heartbeat that standbys wait for."""
        await self._producer.send_raw(COORDINATOR_STATE, LEADER_KEY, pack_leader(leader), partition=0)

    async def tell_figures(self, heartbeat: CoordinatorHeartbeat) -> None:
        await self._producer.send(COORDINATOR_EVENTS, heartbeat.coordinator, heartbeat)

    async def show_progress(self, positions: Positions, group: str) -> None:
        """Commit how far the inputs were read, for monitoring."""
        await self._producer.send_offsets(positions, group)


def without_lost(effects: Iterable[Effect], begins: Mapping[int, int], ends: Mapping[int, int]) -> list[Effect]:
    """Decisions, with manifests that name nothing that is gone; bounds are by partition."""
    sound: list[Effect] = []
    for effect in effects:
        if not isinstance(effect, PublishBatch):
            sound.append(effect)
            continue
        record = retention.without_lost(effect.record, begins, ends)
        if record is not effect.record:
            log.error("batch %s names experiences that were gone before it ended", record.batch_id)
        sound.append(PublishBatch(record))
    return sound


def as_received(refused: RejectTask) -> Received[Any]:
    """Return a refused task that was read long ago, as it would come from the topic today."""
    headers = [(CONTENT_TYPE, MSGPACK.encode())]
    if refused.traceparent is not None:
        headers.append((TRACEPARENT, refused.traceparent.encode()))
    task_id = refused.task.task_id
    return Received(
        record=refused.task,
        topic=TASKS,
        partition=refused.origin.partition,
        offset=refused.origin.offset,
        key=task_id,
        raw=encode(refused.task),
        headers=tuple(headers),
        traceparent=refused.traceparent,
        timestamp_ms=0,
        raw_key=task_id.encode(),
    )


def _context(span: Span, parent: str | None) -> str | None:
    # The span's context, or without tracing that of its parent.
    return traceparent(span) or parent
