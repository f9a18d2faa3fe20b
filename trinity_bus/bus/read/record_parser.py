"""The records of a batch, one after the other: slower than the client library, and a bad one costs itself alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import CorruptRecordException

MAX_HEADERS: Final = 128  # of one record; the mesh's own have less than ten
# larger batches are looked through before they are parsed: a MiB of headers costs 60 MiB and a tenth of a second
WALK_BYTES: Final = 1 << 20


class BadHeaderError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Times:
    first: int
    max: int
    is_append_time: bool


def pieces(body: bytes | memoryview, count: int, skip: int) -> Iterator[memoryview]:
    """Return the bytes of each record. Raises CorruptRecordException: there are more or fewer than the batch says."""
    view, at = memoryview(body), 0
    for index in range(count):
        length, begin = _varint(view, at)
        at = begin + length
        if length < 0 or at > len(view):
            raise CorruptRecordException(f"record {index} of {count} has a length of {length}")
        if index >= skip:
            yield view[begin:at]
    if at != len(view):
        raise CorruptRecordException(f"{len(view) - at} bytes are left behind the last record")


def parse(tp: TopicPartition, piece: memoryview, base: int, times: Times) -> ConsumerRecord:
    """Return one record, parsed from its attributes on. Raises BadHeaderError or CorruptRecordException."""
    time_delta, at = _varint(piece, 1)
    offset_delta, at = _varint(piece, at)
    key, at = _bytes(piece, at)
    value, at = _bytes(piece, at)
    count, at = _varint(piece, at)
    _check_count(count)
    headers = []
    for _ in range(count):
        name, at = _bytes(piece, at)
        data, at = _bytes(piece, at)
        try:
            headers.append(((name or b"").decode(), data))
        except UnicodeDecodeError as error:
            raise BadHeaderError(f"a header's name is not text: {error}") from error
    if at != len(piece):
        raise CorruptRecordException(f"{len(piece) - at} bytes are left behind its last header")
    time_ms = times.max if times.is_append_time else times.first + time_delta
    sizes = (-1 if key is None else len(key), -1 if value is None else len(value))
    return ConsumerRecord(
        *tp, base + offset_delta, time_ms, int(times.is_append_time), key, value, None, *sizes, tuple(headers)
    )


def check_headers(body: bytes | memoryview) -> None:
    """Check for how many headers large records have: the library would make objects of all of them.

    Raises:
        BadHeaderError: A large record has too many.
        CorruptRecordException: It is no batch of records.
    """
    view, at = memoryview(body), 0
    while at < len(view):
        length, begin = _varint(view, at)
        at = begin + length
        if length < 0 or at > len(view):
            raise CorruptRecordException(f"a record has a length of {length}")
        if length > WALK_BYTES:
            piece = view[begin:at]
            inner = 1
            for _ in range(2):
                _, inner = _varint(piece, inner)
            for _ in range(2):
                size, inner = _varint(piece, inner)
                inner += max(size, 0)
            _check_count(_varint(piece, inner)[0])


def _check_count(headers: int) -> None:
    if not 0 <= headers <= MAX_HEADERS:
        raise BadHeaderError(f"a record with {headers} headers, the limit is {MAX_HEADERS}")


def _bytes(data: memoryview, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size < 0:
        return None, at
    if size > len(data) - at:
        raise CorruptRecordException(f"{size} bytes, where {len(data) - at} are left")
    return bytes(data[at : at + size]), at + size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    # A number of Kafka's varying length, and where it ends.
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise CorruptRecordException("a number has no end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
