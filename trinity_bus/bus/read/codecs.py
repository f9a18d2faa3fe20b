"""Unpacking the body of a batch of records, within a bound: Kafka's four codecs.

A few KiB on the wire may unpack to gigabytes, so nothing here takes more memory than the bound, whatever the bytes say
of themselves. Anything that is not what the codec writes is a :class:`BodyError`, never another exception.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from schemas.topics import TOPICS

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
