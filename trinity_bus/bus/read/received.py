"""A record as it comes off the log, readable or not."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiokafka import ConsumerRecord
from msgspec import Struct

from schemas.errors import DecodeError
from schemas.topic import TRACEPARENT, Topic
from trinity_bus.bus.read.authors import decode_own
from trinity_bus.bus.read.batches import Unreadable

SLICE_S = 0.005  # how long encoding or decoding may keep the event loop to itself

type Headers = tuple[tuple[str, bytes], ...]


def header(headers: Iterable[tuple[str, bytes | None]], name: str) -> str | None:
    """Return the last header of this name, as Kafka's own clients do, as text; None if absent or not UTF-8."""
    found = None
    for key, value in headers:
        if key == name:
            found = value
    if found is None:
        return None
    try:
        return found.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Undecodable:
    """What a record is that its codec refuses; its reader continues and sends a dead letter."""

    raw: bytes
    reason: str
    detail: str


class Received[R](Struct, frozen=True, eq=False):
    """One record and where it came from.

    ``record`` is :class:`Undecodable` where the codec refuses the bytes, ``None`` for a tombstone (a null value on a
    compacted topic), and the bytes themselves on topics that have no record types.
    """

    record: R | Undecodable
    topic: Topic
    partition: int
    offset: int
    key: str | None  # for reading; bytes that are not UTF-8 are shown escaped
    raw: bytes  # the value as it came; empty for a null value
    headers: Headers
    traceparent: str | None
    timestamp_ms: int  # when the producer, or the broker, says it was written, since the Unix epoch; 0 if unknown
    raw_key: bytes | None = None
    is_null: bool = False  # the value is null, not merely empty
    # Why neither it nor what follows, up to an offset, could be taken off the log; ``raw`` is its beginning then.
    unreadable: Unreadable | None = None

    @property
    def last_offset(self) -> int:
        # Its own, but where a batch of records cannot be read.
        return self.offset if self.unreadable is None else self.unreadable.last_offset

    @property
    def place(self) -> str:
        """``topic/partition@offset``, or ``@first-last``, for messages."""
        to = "" if self.last_offset == self.offset else f"-{self.last_offset}"
        return f"{self.topic.name}/{self.partition}@{self.offset}{to}"


def receive(topic: Topic, record: ConsumerRecord | Unreadable, expect: tuple[type, ...]) -> Received[Any]:
    """Decode one record of ``topic``; never raises for what is in it."""
    if isinstance(record, Unreadable):
        return _unreadable(topic, record)
    headers: Headers = tuple(record.headers)
    return Received(
        record=_decoded(topic, record.key, record.value, expect),
        topic=topic,
        partition=record.partition,
        offset=record.offset,
        key=None if record.key is None else record.key.decode("utf-8", "backslashreplace"),
        raw=record.value or b"",
        headers=headers,
        traceparent=header(headers, TRACEPARENT),
        timestamp_ms=record.timestamp,
        raw_key=record.key,
        is_null=record.value is None,
    )


def _unreadable(topic: Topic, found: Unreadable) -> Received[Any]:
    return Received(
        record=Undecodable(found.head, found.reason, found.detail),
        topic=topic,
        partition=found.partition,
        offset=found.offset,
        key=None if found.key is None else found.key.decode("utf-8", "backslashreplace"),
        raw=found.head,
        headers=(),
        traceparent=None,
        timestamp_ms=0,
        raw_key=found.key,
        unreadable=found,
    )


def _decoded(topic: Topic, key: bytes | None, value: bytes | None, expect: tuple[type, ...]) -> Any:
    if value is None:
        return (
            None if topic.cleanup == "compact" else Undecodable(b"", "no_value", f"{topic.name} takes no null values")
        )
    if not expect:
        return value
    try:
        return decode_own(topic, key, value, expect)
    except DecodeError as error:
        return Undecodable(value, error.reason, error.detail)


async def receive_all(
    raw: deque[tuple[Topic, ConsumerRecord | Unreadable]],
    into: list[Received[Any]],
    expect: Callable[[Topic], tuple[type, ...]],
    limit: int,
    wants: Callable[[Topic, ConsumerRecord | Unreadable], bool] = lambda _topic, _record: True,
) -> None:
    """Move records of ``raw``, decoded, to ``into`` until it has ``limit``, letting the event loop turn meanwhile."""
    # Those that are not wanted are dropped, undecoded. Cancelled half-way, another call continues from there.
    until = time.perf_counter() + SLICE_S
    while raw and len(into) < limit:
        topic, record = raw[0]
        if wants(topic, record):
            into.append(receive(topic, record, expect(topic)))
        raw.popleft()
        if time.perf_counter() > until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_S
