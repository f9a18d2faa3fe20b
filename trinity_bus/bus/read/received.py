"""A record as it comes off the log, readable or not; whether its author may say it; and its dead letter.

Brokers let a user write a topic or not, whatever is in the records, and tell no reader who wrote one. So a topic has
the authors that ``schemas.topics`` names, and a reader takes from it nothing but what they may say:

===================  ===================================================================================================
``forged_author``    a record type that only others may write, such as a trainer's step among the events of explorers
``forged_sender``    a record whose key is not the name that stands in it, or that speaks of a runner of another
===================  ===================================================================================================

Neither is proof against an author who lies about itself: all explorers are one user, unless brokers know them apart,
and one that writes another's name into key and record is believed. See ``docs/security.md``.

A dead letter keeps a record that was refused, with the reason. It has the key, value and headers of the record that it
stands for, but for what it was as a CloudEvent; what is added is in ``dlq.`` and ``ce_`` headers (see
:mod:`schemas.topic`). Producing its key, value and remaining headers to the topic named there tries it again. Of a
record with so many headers that no reader would take a letter with all of them, none is kept.

What is larger than its topic allows, or than the topic of dead letters has room for, and a batch that cannot be
unpacked, is cut: the first KiB is kept, with the size and the hash of all of it, so that the letter of a record is
never larger than what a topic takes.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from aiokafka import ConsumerRecord
from msgspec import Struct

from schemas.codec import RECORDS, decode
from schemas.errors import DecodeError
from schemas.event import RunnersReport
from schemas.topic import (
    CE_PREFIX,
    DLQ_DETAIL,
    DLQ_LAST_OFFSET,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_REASON,
    DLQ_SHA256,
    DLQ_SIZE,
    DLQ_TOPIC,
    ROOM,
    TRACEPARENT,
    Topic,
)
from schemas.topics import TOPICS
from trinity_bus.bus.read.batches import HEAD_BYTES, Unreadable
from trinity_bus.bus.read.wire_format import MAX_HEADERS

FORGED_AUTHOR = "forged_author"
FORGED_SENDER = "forged_sender"
_FOREIGN = "unexpected_schema"  # what the codec says of a record of a type that is not welcome


@lru_cache
def own(topic: Topic, expect: tuple[type, ...]) -> tuple[type, ...]:
    """Those of the expected types that may stand on the topic."""
    return tuple(cls for cls in expect if cls in topic.records)


def decode_own(topic: Topic, key: bytes | None, value: bytes, expect: tuple[type, ...]) -> Any:
    """Return the record in ``value``, if it is one of the expected types and its author may say it.

    A reader that expects all that may stand on the topic is told what is forged; to others it is merely unexpected.
    DecodeError: it is nothing of the kind.
    """
    types = own(topic, expect)
    if not types:
        raise DecodeError(_FOREIGN, f"nothing that {topic.name} carries is expected here")
    try:
        record: Any = decode(value, *types)
    except DecodeError as error:
        if error.reason == _FOREIGN and len(types) == len(topic.records):
            _refuse_forged(topic, value)
        raise
    if topic.sender is not None:
        name = getattr(record, topic.sender)
        if key != name.encode():
            text = None if key is None else key[:200].decode("utf-8", "backslashreplace")
            raise DecodeError(FORGED_SENDER, f"the key is {text!r}, but the record is said to be of {name!r}")
        if type(record) is RunnersReport:
            for runner in record.runners:
                if not runner.runner.startswith(f"{name}/"):
                    raise DecodeError(FORGED_SENDER, f"{name!r} tells of {runner.runner!r}, which is no runner of it")
    return record


def _refuse_forged(topic: Topic, value: bytes) -> None:
    # Raise for a record that not everybody who may write the topic may say.
    cls = _type_of(value)
    if cls is None:
        return
    writers: set[str] = {writer for other in TOPICS if cls in other.records for writer in other.writers}
    if not writers.issuperset(topic.writers):
        raise DecodeError(
            FORGED_AUTHOR,
            f"{cls.__name__} on {topic.name}, the {_names(topic.writers)}'s topic: only {_names(writers)} may say it",
        )


def _type_of(value: bytes) -> type | None:
    try:
        return type(decode(value, *RECORDS))
    except DecodeError:
        return None


def _names(writers: Iterable[str]) -> str:
    return " and ".join(sorted(writers)) or "nobody"


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
    value = record.value
    found: Any = value
    if value is None and topic.cleanup != "compact":
        found = Undecodable(b"", "no_value", f"{topic.name} takes no null values")
    elif value is not None and expect:
        try:
            found = decode_own(topic, record.key, value, expect)
        except DecodeError as error:
            found = Undecodable(value, error.reason, error.detail)
    headers: Headers = tuple(record.headers)
    return Received(
        record=found,
        topic=topic,
        partition=record.partition,
        offset=record.offset,
        key=None if record.key is None else record.key.decode("utf-8", "backslashreplace"),
        raw=value or b"",
        headers=headers,
        traceparent=header(headers, TRACEPARENT),
        timestamp_ms=record.timestamp,
        raw_key=record.key,
        is_null=value is None,
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


MAX_DETAIL_BYTES = 2000
_MOST_ADDED = 16  # headers of a dead letter that are its own
_OWN = frozenset({DLQ_REASON, DLQ_DETAIL, DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_LAST_OFFSET, DLQ_SIZE, DLQ_SHA256})


def dead_letter(
    received: Received[Any], reason: str, detail: str, max_message_bytes: int
) -> tuple[bytes | None, bytes | None, Headers]:
    key, value = received.raw_key, None if received.is_null else received.raw
    # What the record was as an event of its sender's, its dead letter is not.
    kept: Headers = tuple(
        (name, data) for name, data in received.headers if name not in _OWN and not name.startswith(CE_PREFIX)
    )
    if len(kept) > MAX_HEADERS - _MOST_ADDED:
        kept = ()
    added = [
        (DLQ_REASON, reason.encode()),
        (DLQ_DETAIL, detail.encode("utf-8", "backslashreplace")[:MAX_DETAIL_BYTES]),
        (DLQ_TOPIC, received.topic.name.encode()),
        (DLQ_PARTITION, str(received.partition).encode()),
        (DLQ_OFFSET, str(received.offset).encode()),
    ]
    if received.last_offset != received.offset:
        added.append((DLQ_LAST_OFFSET, str(received.last_offset).encode()))
    if received.unreadable is not None:
        added += _whole(received.unreadable.size, received.unreadable.sha256)
    elif _size(key, value, kept) > min(received.topic.max_message_bytes, max_message_bytes - ROOM):
        added += _whole(len(value or b""), hashlib.sha256(value or b"").hexdigest())
        key, value, kept = (key or b"")[:HEAD_BYTES], (value or b"")[:HEAD_BYTES], ()
    return key, value, (*kept, *added)


class Refusal(NamedTuple):
    """What the headers of a dead letter say, which may be anybody's."""

    reason: str
    detail: str
    topic: str  # that it came from, without the namespace
    source: str  # the same with partition and offset, of several records with the last one's too
    size: str  # of all of its value, where it is cut


def refusal_of(letter: Received[Any]) -> Refusal:
    names = (DLQ_REASON, DLQ_DETAIL, DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_LAST_OFFSET, DLQ_SIZE)
    reason, detail, topic, partition, offset, last, size = (header(letter.headers, name) or "" for name in names)
    source = f"{topic or '?'}/{partition or '?'}@{offset or '?'}" + (f"-{last}" if last else "")
    return Refusal(reason or "?", detail, topic or "?", source, size)


def _whole(size: int, sha256: str) -> Headers:
    # What tells a value that is cut from one that is whole.
    return (DLQ_SIZE, str(size).encode()), (DLQ_SHA256, sha256.encode())


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return len(key or b"") + len(value or b"") + sum(len(name) + len(data or b"") for name, data in headers)
