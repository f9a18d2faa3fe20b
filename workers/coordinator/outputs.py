"""The machine's effects as records of the open transaction, and the coordinator's state in its own topic.

Besides the machine's entries there are two of the service's own, committed with the decisions that they belong to:

===========  =======================================================================================================
``inputs``   how far the input topics were read, so that a successor goes on exactly where the last transaction ended
``leader``   who works, or has left; see :mod:`trinity_bus.coordination.leadership`
===========  =======================================================================================================

About once a second the input positions are committed under the consumer group ``<namespace>.coordinator`` too, for
monitoring; nothing depends on them. A value that cannot be read raises :class:`~trinity_bus.coordination.StateError`:
no coordinator guesses its state.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from schemas import BatchRecord, Cancel, Dispatch, ModelVersion, VersionWanted
from schemas.codec import encode
from schemas.topic import CONTENT_TYPE, MSGPACK, TRACEPARENT, Topic
from schemas.topics import COORDINATOR_EVENTS, COORDINATOR_STATE, MODEL_VERSIONS, ROLLOUTS, TASKS
from trinity_bus.bus import Producer, Received, Undecodable
from trinity_bus.coordination import Effect, Leader, Observe, Origin, RejectTask, StateError, Write, retention
from trinity_bus.telemetry import traceparent
from workers.coordinator import observations
from workers.coordinator.log_facts import Lanes
from workers.coordinator.pending_commit import REASON, Spans

INPUTS_KEY = "inputs"
LEADER_KEY = "leader"

type Positions = dict[tuple[str, int], int]  # (topic, partition) to the offset to read next


class Changelog:
    """The changelog so far, as entries: kept up to date, it spares whoever takes over the reading of it."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}  # the machine's
        self.positions: Positions = {}
        self.leader: Leader | None = None
        self.records = 0  # how many were taken in

    def take(self, received: Received[Any]) -> None:
        """Take in the next record; StateError where this program cannot read it."""
        if isinstance(received.record, Undecodable):
            raise StateError(
                f"{received.place} cannot be read ({received.record.reason}: {received.record.detail}): what the "
                "coordinator knew is not whole any more"
            )
        self.records += 1
        key = received.key or ""
        if received.is_null:
            self.entries.pop(key, None)
        elif key == INPUTS_KEY:
            self.positions = unpack_positions(received.raw)
        elif key == LEADER_KEY:
            self.leader = unpack_leader(received.raw)
        else:
            self.entries[key] = received.raw

    def committed(self, changes: Iterable[tuple[str, bytes | None]], positions: Positions) -> None:
        for key, value in changes:
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
        self.positions = positions


class _Position(msgspec.Struct, array_like=True):
    topic: str
    partition: int
    offset: int


def pack_positions(positions: Mapping[tuple[str, int], int]) -> bytes:
    return msgspec.msgpack.encode([_Position(*place, offset) for place, offset in positions.items()])


def unpack_positions(value: bytes) -> Positions:
    return {(at.topic, at.partition): at.offset for at in _read(INPUTS_KEY, value, list[_Position])}


def unpack_leader(value: bytes) -> Leader:
    return _read(LEADER_KEY, value, Leader)


def _read[T](key: str, value: bytes, of: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(value, type=of)
    except ValueError as error:
        raise StateError(f"entry {key!r} of the coordinator's state cannot be read: {error}") from error


log = logging.getLogger("workers.coordinator")

type Originals = Mapping[Origin, Received[Any]]  # tasks as they came, of those that were read just now


class Outputs:
    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def carry_out(self, effects: Iterable[Effect], originals: Originals, spans: Spans, lanes: Lanes) -> None:
        for effect in effects:
            match effect:
                case Observe():
                    observations.observe(effect)
                case RejectTask():
                    received = originals.get(effect.origin) or as_received(effect)
                    await self._producer.send_dead_letter(received, effect.refusal.value, effect.detail)
                case Write(topic, key, record, context):
                    lane = None
                    # A record carries the span's context, or without tracing that of its parent.
                    if topic is ROLLOUTS:
                        lane = await lanes.of(key, effect.lane)
                        if isinstance(record, Dispatch | Cancel):
                            context = traceparent(spans.dispatch(record, context)) or context
                    elif topic is MODEL_VERSIONS and isinstance(record, ModelVersion):
                        context = traceparent(spans.announce(record, context)) or context
                        # Here, because the machine decides the same on the same inputs, and this must not be foreseen.
                        record = record.model_copy(update={"secret": secrets.token_hex(32)})
                    elif topic is COORDINATOR_EVENTS and isinstance(record, VersionWanted):
                        record = record.model_copy(update={"sent_at": time.time()})
                    await self._producer.send(topic, key, record, partition=lane, traceparent=context)
                    if lane is None:
                        observations.written(record)

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
        await self._producer.send_raw(COORDINATOR_STATE, LEADER_KEY, msgspec.msgpack.encode(leader), partition=0)


def without_lost(effect: Write, begins: Mapping[int, int], ends: Mapping[int, int]) -> Write:
    """Return the same, with a manifest that names nothing that is gone; bounds are by partition."""
    if not isinstance(effect.record, BatchRecord):
        return effect
    record = retention.without_lost(effect.record, begins, ends)
    if record is not effect.record:
        log.error("batch %s names experiences that were gone before it ended", record.batch_id)
    return Write(effect.topic, effect.key, record)


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
