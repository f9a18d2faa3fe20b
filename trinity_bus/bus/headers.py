"""Kafka headers beyond those of ``schemas.headers``: what this project's readers look up and its dead letters carry.

===================  ====================================================================
``dlq.reason``       on dead letters: one machine-readable word
``dlq.detail``       a sentence for people
``dlq.topic``        the topic that it came from, without the namespace
``dlq.partition``    where in it
``dlq.offset``       where in it
``dlq.last_offset``  up to where, if a whole batch of records cannot be read
``dlq.size``         if the value is only the beginning: how large all of it was, in bytes
``dlq.sha256``       likewise: the hash of all of it
===================  ====================================================================
"""

from collections.abc import Iterable

from schemas.headers import (
    DLQ_DETAIL,
    DLQ_LAST_OFFSET,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_REASON,
    DLQ_SHA256,
    DLQ_SIZE,
    DLQ_TOPIC,
)

__all__ = [
    "DLQ_DETAIL",
    "DLQ_LAST_OFFSET",
    "DLQ_OFFSET",
    "DLQ_PARTITION",
    "DLQ_REASON",
    "DLQ_SHA256",
    "DLQ_SIZE",
    "DLQ_TOPIC",
    "Headers",
    "header",
]

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
