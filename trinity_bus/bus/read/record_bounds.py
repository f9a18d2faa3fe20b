"""Where the records of a batch begin and end, and how many headers the large ones have, without parsing them."""

from collections.abc import Iterator
from typing import Final

from aiokafka.errors import CorruptRecordException

MAX_HEADERS: Final = 128  # of one record; the mesh's own have less than ten
# larger batches are looked through before they are parsed: a MiB of headers costs 60 MiB and a tenth of a second
WALK_BYTES: Final = 1 << 20


class BadHeaderError(Exception):
    pass


def pieces(body: bytes | memoryview, count: int, skip: int) -> Iterator[tuple[memoryview, memoryview]]:
    """Return the bytes of each record, with its length in front and without it."""
    view, at = memoryview(body), 0
    for index in range(count):
        start = at
        length, begin = _varint(view, at)
        at = begin + length
        if length < 0 or at > len(view):
            raise CorruptRecordException(f"record {index} of {count} has a length of {length}")
        if index >= skip:
            yield view[start:at], view[begin:at]
    if at != len(view):
        raise CorruptRecordException(f"{len(view) - at} bytes are left behind the last record")


def check_headers(body: bytes | memoryview) -> None:
    """Check for how many headers large records have: the library would make objects of all of them."""
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
            count, _ = _varint(piece, inner)
            if not 0 <= count <= MAX_HEADERS:
                raise BadHeaderError(f"a record with {count} headers, the limit is {MAX_HEADERS}")


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
