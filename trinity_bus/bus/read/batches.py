"""What a fetch has brought, record by record: the one place that decides what of the log cannot be read.

It takes the place of the client library's own (:func:`install`), which raises on the first batch that it cannot unpack,
and again at each fetch, for ever. Here such a batch, or what is left of it, becomes one :class:`Unreadable` that names
its offsets, and reading goes on behind it::

    bytes of a fetch --> frames --------> batches -----------> records
                          |                |                    |
                          length, magic    CRC, codec, bound    structure, order, size, headers
                          |                |                    |
                          '----------------+--------------------+----> Unreadable(reason, offsets, first bytes)

==================  ====================================================================================================
``bad_frame``       the length of a batch is nonsense: what follows in this fetch is asked for anew
``unknown_format``  a batch of another format than version 2, in which no broker since Kafka 0.11 keeps records
``corrupt``         the checksum is wrong, the body does not unpack, or records are not what the batch says
``unknown_codec``   packed in a way that nobody knows
``too_large``       it unpacks to more than its topic allows, as a batch or as a record
``bad_header``      the name of a header is no text, or there are more than ``MAX_HEADERS``
==================  ====================================================================================================

The library's parser in C is used for records as long as it can read them. Where it stumbles, the rest of the batch is
taken apart here, one record after the other, so that a bad one costs itself alone; after ``MAX_FAULTS`` of them what is
left of the batch is given up.

Memory: one batch at a time is unpacked, within ``codecs.body_bound``; when a fetch has unpacked to more than
``UNPACKED_BYTES``, what is left of it is dropped and asked for anew, when its reader has room.
"""

import hashlib
import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import CorruptRecordException

from trinity_bus.bus.client.internals import READ_COMMITTED, DefaultRecordBatch, calc_crc32c, unpack_with
from trinity_bus.bus.read.wire_format import (
    HEADER,
    MAGIC_AT,
    MAX_HEADERS,
    WALK_BYTES,
    BadHeaderError,
    BodyError,
    Frames,
    body_bound,
    check_headers,
    pieces,
    record_limit,
    unpack,
)

log = logging.getLogger(__name__)

MAX_FAULTS: Final = 16
HEAD_BYTES: Final = 1024  # so much is kept of what cannot be read
UNPACKED_BYTES: Final = 8 << 20

_CRC_FROM, _ATTRIBUTES_LOW_AT = 21, 22
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class Unreadable:
    topic: str  # with its namespace
    partition: int
    offset: int  # the first
    last_offset: int
    reason: str
    detail: str
    head: bytes  # the first bytes of the batch as it lies on the log, or of the record's value
    size: int  # of all of it, in bytes
    sha256: str
    key: bytes | None = None  # of a single record, where that much can be read; cut like ``head``


class FetchedRecords:
    """The records of one partition in one fetch: what the client library takes them from.

    It is given the deserializers and ``check_crcs`` by the library, and ignores them: checksums are always checked.
    """

    def __init__(  # noqa: PLR0917 - the library passes them so
        self,
        tp: TopicPartition,
        records: Frames,
        aborted_transactions: Sequence[tuple[int, int]] | None,
        fetch_offset: int,
        key_deserializer: Any,
        value_deserializer: Any,
        check_crcs: bool,
        isolation_level: int,
    ) -> None:
        del key_deserializer, value_deserializer, check_crcs
        self.next_fetch_offset = fetch_offset  # where to continue; the library reads it
        self._tp = tp
        self._frames = records
        self._aborted = sorted(aborted_transactions or (), key=lambda entry: entry[1], reverse=True)
        self._aborting: set[int] = set()
        self._committed_only = isolation_level == READ_COMMITTED
        self._limit = record_limit(tp.topic)
        self._bound = body_bound(tp.topic)
        self._unpacked = 0
        self._items = self._all()

    def __iter__(self) -> Iterator[ConsumerRecord | Unreadable]:
        return self

    def __next__(self) -> ConsumerRecord | Unreadable:
        return next(self._items)

    def _all(self) -> Iterator[ConsumerRecord | Unreadable]:
        frames = self._frames
        while frames.has_next() and self._unpacked <= UNPACKED_BYTES:
            frame = frames.next_frame()
            if frame is None:
                yield self._lost(
                    self.next_fetch_offset, "bad_frame", "the length of a batch is nonsense", frames.rest()
                )
                return
            opened = self._open(frame)
            if isinstance(opened, Unreadable):
                yield opened
            elif opened is not None:
                body, base, last = opened
                yield from self._records(frame, body, base, last)
                self.next_fetch_offset = max(self.next_fetch_offset, last + 1)

    def _open(self, frame: memoryview) -> tuple[bytes | memoryview, int, int] | Unreadable | None:
        # The records of a batch as bytes, with its first offset and its last; ``None`` where none are wanted.
        header = HEADER.unpack_from(frame) if frame[MAGIC_AT] == 2 else None
        if header is None:
            (offset,) = struct.unpack_from(">q", frame)
            detail = f"a batch of format {frame[MAGIC_AT]}, where all are of format 2"
            return self._lost(self._last_of_broken(offset, 0, 1), "unknown_format", detail, frame)
        base, attributes, last_delta, producer, count = header[0], header[5], header[6], header[9], header[12]
        if calc_crc32c(frame[_CRC_FROM:]) != header[4]:
            return self._lost(self._last_of_broken(base, last_delta, count), "corrupt", "its checksum is wrong", frame)
        last = base + last_delta
        if base < 0 or last_delta < 0 or count < 0:
            detail = f"a batch of {count} records from offset {base} to {last}"
            return self._lost(self._last_of_broken(base, last_delta, count), "corrupt", detail, frame)
        is_aborted = self._is_aborted(base, attributes, producer)
        if attributes & _CONTROL:
            # Any marker ends the transaction that its producer had open.
            self._aborting.discard(producer)
        if is_aborted or attributes & _CONTROL or last < self.next_fetch_offset:
            self.next_fetch_offset = max(self.next_fetch_offset, last + 1)
            return None
        try:
            body = unpack(attributes & _CODEC, frame[HEADER.size :], self._bound)
        except BodyError as error:
            return self._lost(last, error.reason, error.detail, frame)
        if attributes & _CODEC:
            self._unpacked += len(body)
        return body, base, last

    def _records(
        self, frame: memoryview, body: bytes | memoryview, base: int, last: int
    ) -> Iterator[ConsumerRecord | Unreadable]:
        expected, taken = base, 0
        try:
            if len(body) > WALK_BYTES:
                check_headers(body)
            for record in DefaultRecordBatch(_plain(frame, body)):
                if not expected <= record.offset <= last:
                    break
                expected = record.offset + 1
                taken += 1
                if record.offset >= self.next_fetch_offset:
                    yield self._taken(record)
            else:
                return
        except Exception:
            # Whatever the parser in C raises, the records are looked at again one by one.
            log.debug("a batch of %s is taken apart", self._tp, exc_info=True)
        yield from self._piecewise(frame, body, (base, expected, last), taken)

    def _taken(self, record: Any) -> ConsumerRecord | Unreadable:
        offset, key, value, headers = record.offset, record.key, record.value, record.headers
        sizes = (-1 if key is None else len(key), -1 if value is None else len(value))
        if sum(sizes) > self._limit or len(headers) > MAX_HEADERS:
            return self._refused(offset, key, value, len(headers))
        self.next_fetch_offset = offset + 1
        return ConsumerRecord(
            *self._tp, offset, record.timestamp, record.timestamp_type, key, value, None, *sizes, tuple(headers)
        )

    def _piecewise(
        self, frame: memoryview, body: bytes | memoryview, offsets: tuple[int, int, int], taken: int
    ) -> Iterator[ConsumerRecord | Unreadable]:
        # The records of a batch after the ``taken`` that the library could parse, each as a batch by itself, so that a
        # bad one costs itself alone. ``offsets``: the batch's first, the least that comes next, its last.
        base, expected, last = offsets
        header = HEADER.unpack_from(frame)
        alone = HEADER.pack(*header[:5], header[5] & ~_CODEC, *header[6:12], 1)
        faults = 0
        try:
            for whole, piece in pieces(body, header[12], taken):
                _check_faults(faults)
                _check_order(expected, expected, last)
                try:
                    if len(whole) > WALK_BYTES:
                        check_headers(whole)
                    (record,) = DefaultRecordBatch(alone + bytes(whole))
                except Exception as error:  # noqa: BLE001 - whatever the parser in C raises
                    faults += 1
                    reason = "bad_header" if isinstance(error, BadHeaderError | UnicodeDecodeError) else "corrupt"
                    if expected >= self.next_fetch_offset:
                        yield self._lost(expected, reason, _text(error), piece)
                    expected += 1
                    continue
                _check_order(record.offset, expected, last)
                expected = record.offset + 1
                if record.offset >= self.next_fetch_offset:
                    yield self._taken(record)
        except CorruptRecordException as error:
            # No single record is to blame. If all have been returned already, the whole batch is named.
            self.next_fetch_offset = base if self.next_fetch_offset > last else self.next_fetch_offset
            yield self._lost(last, "corrupt", f"records are not what their batch says: {_text(error)}", frame)

    def _is_aborted(self, base: int, attributes: int, producer: int) -> bool:
        # Batches come in the order of the log.
        while self._aborted and self._aborted[-1][1] <= base:
            self._aborting.add(self._aborted.pop()[0])
        return producer in self._aborting and self._committed_only and bool(attributes & _TRANSACTIONAL)

    def _last_of_broken(self, base: int, last_delta: int, count: int) -> int:
        # Up to where a batch goes whose header cannot be trusted: rather too near than too far.
        following = self._frames.base_of_next()
        if following is not None and base < following:
            return self._bounded(following - 1)
        return self._bounded(base + max(0, min(last_delta, count - 1)))

    def _bounded(self, last: int) -> int:
        return max(last, self.next_fetch_offset)

    def _refused(self, offset: int, key: bytes | None, value: bytes | None, headers: int) -> Unreadable:
        # A record that is what it should be, but for its size or its headers.
        size = len(key or b"") + len(value or b"")
        if size > self._limit:
            reason, detail = "too_large", f"a record of {size:,} bytes, the limit is {self._limit:,}"
        else:
            reason, detail = "bad_header", f"a record with {headers} headers, the limit is {MAX_HEADERS}"
        self.next_fetch_offset = offset
        return self._lost(offset, reason, detail, memoryview(value or b""), key=key)

    def _lost(self, last: int, reason: str, detail: str, data: memoryview, key: bytes | None = None) -> Unreadable:
        first, last = self.next_fetch_offset, self._bounded(last)
        self.next_fetch_offset = last + 1
        return Unreadable(
            topic=self._tp.topic,
            partition=self._tp.partition,
            offset=first,
            last_offset=last,
            reason=reason,
            detail=detail,
            head=bytes(data[:HEAD_BYTES]),
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            key=None if key is None else key[:HEAD_BYTES],
        )


def install() -> None:
    """Have every consumer of the client library in this process read with this module."""
    # The library makes these objects by the names of its own classes, and offers no other way.
    unpack_with(Frames, FetchedRecords)


def _plain(frame: memoryview, body: bytes | memoryview) -> bytes | memoryview:
    # The batch as if it had never been packed.
    if not frame[_ATTRIBUTES_LOW_AT] & _CODEC:
        return frame
    plain = bytearray(frame[: HEADER.size])
    plain[_ATTRIBUTES_LOW_AT] &= ~_CODEC & 0xFF
    plain += body
    return memoryview(plain)


def _check_order(offset: int, expected: int, last: int) -> None:
    if not expected <= offset <= last:
        raise CorruptRecordException(f"offset {offset} where {expected} to {last} are left")


def _check_faults(faults: int) -> None:
    if faults >= MAX_FAULTS:
        raise CorruptRecordException(f"more than {MAX_FAULTS} records that cannot be read")


def _text(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"a header's name is not text: {error}"
    return str(error.args[0] if error.args else "") or type(error).__name__
