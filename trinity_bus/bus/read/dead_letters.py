"""Dead letters: records that could not be taken, kept as they came, with the reason beside them.

A dead letter has the key, value and headers of the record that it stands for; what is added is in ``dlq.`` headers (see
:mod:`schemas.topic`). Producing its key, value and remaining headers to the topic named there tries it again.

What is larger than its topic allows, or than the topic of dead letters has room for, and a batch that cannot be
unpacked, is cut: the first KiB is kept, with the size and the hash of all of it, so that the letter of a record is
never larger than what a topic takes.
"""

import hashlib
from typing import Any, NamedTuple

from schemas.topic import (
    DLQ_DETAIL,
    DLQ_LAST_OFFSET,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_REASON,
    DLQ_SHA256,
    DLQ_SIZE,
    DLQ_TOPIC,
    ROOM,
)
from trinity_bus.bus.read.batches import HEAD_BYTES
from trinity_bus.bus.read.received import Headers, Received, header

MAX_DETAIL_BYTES = 2000
_OWN = frozenset({DLQ_REASON, DLQ_DETAIL, DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_LAST_OFFSET, DLQ_SIZE, DLQ_SHA256})


def dead_letter(
    received: Received[Any], reason: str, detail: str, max_message_bytes: int
) -> tuple[bytes | None, bytes | None, Headers]:
    key, value = received.raw_key, None if received.is_null else received.raw
    kept: Headers = tuple((name, data) for name, data in received.headers if name not in _OWN)
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
