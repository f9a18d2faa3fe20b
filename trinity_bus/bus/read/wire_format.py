"""What is read here of Kafka's wire format: batches in a fetch, their bodies in its four codecs, records in a body.

Batches are told apart by their lengths, and records are not parsed. A few KiB on the wire may unpack to gigabytes, so
nothing here takes more memory than the bound, whatever the bytes say of themselves. Anything that is not what the codec
writes is a :class:`BodyError`, never another exception.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam
from aiokafka.errors import CorruptRecordException

from schemas.topics import TOPICS

# Of a batch of format 2: base offset, length, leader epoch, magic, CRC, attributes, delta of the last offset, first and
# largest time, producer's id, epoch and sequence, number of records.
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
MAGIC_AT: Final = 16

_LENGTH: Final = struct.Struct(">i")
_OVERHEAD: Final = 12  # bytes of the offset and the length, in front of what the length counts


class Frames:
    # The client library looks at it by these methods.
    def __init__(self, data: bytes | None) -> None:
        self._data = memoryview(data or b"")
        self._at = 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        # The last one may be cut off, and comes whole with the next fetch.
        left = len(self._data) - self._at
        # Where not even the first is whole its length lies: a broker always sends one that is.
        return left > 0 and (not self._at or left >= _OVERHEAD + max(self._length(), 0))

    def next_frame(self) -> memoryview | None:
        # ``None`` where its length is nonsense, and nothing can follow.
        data, begin = self._data, self._at
        left, size = len(data) - begin, _OVERHEAD + self._length()
        # Batches of old formats may be smaller than the header of today's, and are told apart by their magic.
        if not HEADER.size <= size <= left and not (MAGIC_AT < size <= left and data[begin + MAGIC_AT] < 2):
            return None
        self._at = end = begin + size
        return data[begin:end]

    def base_of_next(self) -> int | None:
        # The first offset of the batch that follows, if it has come and looks like one.
        if len(self._data) - self._at < HEADER.size or self._data[self._at + MAGIC_AT] != 2:
            return None
        return int(struct.unpack_from(">q", self._data, self._at)[0])

    def rest(self) -> memoryview:
        # What has not been taken yet; it is now.
        rest = self._data[self._at :]
        self._at = len(self._data)
        return rest

    def _length(self) -> int:
        if len(self._data) - self._at < _OVERHEAD:
            return 0
        length: int = _LENGTH.unpack_from(self._data, self._at + 8)[0]
        return length


GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4  # Kafka's numbers; 0 is none
# Bytes: a batch of small records may be this large too. Clients bound batches, before or after packing, at 1 MiB.
MIN_BOUND: Final = 16 << 20
_FIRST_GUESS: Final = 64 << 10
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16  # bytes: the magic word and two version numbers


class BodyError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason  # ``unknown_codec``, ``too_large`` or ``corrupt``
        self.detail = detail


_LIMITS: Final = {topic.name: topic.max_message_bytes for topic in TOPICS}


def record_limit(full_name: str) -> int:
    return _LIMITS.get(full_name.rpartition(".")[2], max(_LIMITS.values()))


def body_bound(full_name: str) -> int:
    return max(MIN_BOUND, record_limit(full_name))


def unpack(codec: int, body: memoryview, bound: int) -> bytes | memoryview:
    """Return the body of a batch as it was before it was packed, of at most ``bound`` bytes. Raises BodyError."""
    if codec == 0:
        return body
    unpacker = _UNPACKERS.get(codec)
    if unpacker is None:
        raise BodyError("unknown_codec", f"it is packed with codec {codec}, which nobody knows")
    try:
        return unpacker(body, bound)
    except (zlib.error, struct.error, cramjam.DecompressionError, ValueError, OverflowError, MemoryError) as error:
        raise BodyError("corrupt", f"its {_NAMES[codec]} body is broken: {error or type(error).__name__}") from error


def _gunzip(body: memoryview, bound: int) -> bytes:
    parts, size, rest = [], 0, bytes(body)
    while rest:
        member = zlib.decompressobj(wbits=31)
        part = member.decompress(rest, bound - size + 1)
        parts.append(part)
        size += len(part)
        if size > bound:
            raise _too_large(bound)
        if not member.eof:
            raise ValueError("it is truncated")
        rest = member.unused_data
    return b"".join(parts)


def _unsnap(body: memoryview, bound: int) -> bytes:
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        return _unsnap_block(body, bound)
    parts, size, at = [], 0, _XERIAL_HEADER
    while at < len(body):
        (length,) = struct.unpack_from(">i", body, at)
        at += 4
        if not 0 <= length <= len(body) - at:
            raise ValueError(f"a block of {length} bytes, where {len(body) - at} are left")
        part = _unsnap_block(body[at : at + length], bound - size)
        parts.append(part)
        size += len(part)
        at += length
    return b"".join(parts)


def _unsnap_block(block: memoryview, bound: int) -> bytes:
    raw = bytes(block)
    if cramjam.snappy.decompress_raw_len(raw) > bound:
        raise _too_large(bound)
    return bytes(cramjam.snappy.decompress_raw(raw))


def _framed(into: Callable[[bytes, bytearray], int]) -> Callable[[memoryview, int], memoryview]:
    # For a codec that does not tell beforehand how much comes: tries more and more room.
    def unpack_within(body: memoryview, bound: int) -> memoryview:
        raw = bytes(body)
        room = min(bound, max(_FIRST_GUESS, 4 * len(raw)))
        while True:
            out = bytearray(room)
            try:
                size = into(raw, out)
            except cramjam.DecompressionError as error:
                if "whole buffer" not in str(error) and "buffer is too small" not in str(error):
                    raise
                if room >= bound:
                    raise _too_large(bound) from error
                room = min(bound, 8 * room)
            else:
                return memoryview(out)[:size]

    return unpack_within


def _too_large(bound: int) -> BodyError:
    return BodyError("too_large", f"it unpacks to more than {bound:,} bytes")


_NAMES: Final = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_UNPACKERS: Final[dict[int, Callable[[memoryview, int], bytes | memoryview]]] = {
    GZIP: _gunzip,
    SNAPPY: _unsnap,
    LZ4: _framed(cramjam.lz4.decompress_into),
    ZSTD: _framed(cramjam.zstd.decompress_into),
}


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
