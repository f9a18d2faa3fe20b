"""Batches of records as they lie on the log, made by hand: also such as no client sends and no broker takes."""

import struct
from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

HEADER_BYTES = 61
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

type Entry = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Key, value, headers."""


def batch(entries: Sequence[Entry], *, base: int = 0, codec: int = 0, transaction_of: int | None = None) -> bytes:
    """A good batch; its codec is Kafka's number, and it may belong to the transaction of a producer."""
    producer = (-1, -1, -1) if transaction_of is None else (transaction_of, 0, 0)
    builder = DefaultRecordBatchBuilder(2, codec, transaction_of is not None, *producer, 1 << 30)
    for number, (key, value, headers) in enumerate(entries):
        builder.append(number, 1_700_000_000_000 + number, key, value, headers)
    return based(bytes(builder.build()), base)


def marker(producer: int, *, base: int, commit: bool) -> bytes:
    """The end of a transaction, as brokers write it."""
    raw = bytearray(batch([(struct.pack(">hh", 0, int(commit)), b"\0" * 6, [])], transaction_of=producer))
    raw[22] |= 0x20
    return based(signed(raw), base)


def based(raw: bytes, base: int) -> bytes:
    return struct.pack(">q", base) + raw[8:]


def signed(raw: bytes | bytearray) -> bytes:
    body = bytes(raw[21:])
    return bytes(raw[:8]) + struct.pack(">i", len(raw) - 12) + bytes(raw[12:17]) + struct.pack(">I", crc(body)) + body


def crc(body: bytes) -> int:
    return int(calc_crc32c(body))


def packed_with(raw: bytes, codec: int, body: bytes) -> bytes:
    """The batch with another codec and body, and a checksum that is right."""
    changed = bytearray(raw[:HEADER_BYTES]) + body
    changed[22] = (changed[22] & ~7) | codec
    return signed(changed)


def varint(value: int) -> bytes:
    value = ((value << 1) ^ (value >> 63)) & 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def aged_segment(data: bytes, by_ms: int) -> bytes:
    """A segment of a log, each record older by so many milliseconds."""
    at, made = 0, bytearray()
    while at + HEADER_BYTES <= len(data) and (size := 12 + int.from_bytes(data[at + 8 : at + 12])) > 12:
        raw = bytearray(data[at : at + size])
        first, last = struct.unpack_from(">qq", raw, 27)
        struct.pack_into(">qq", raw, 27, first - by_ms, last - by_ms)
        made += signed(raw)
        at += size
    return bytes(made)
