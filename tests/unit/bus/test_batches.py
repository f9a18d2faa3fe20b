"""What a fetch has brought, record by record: good batches as the client library reads them, and all others."""

import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import cramjam
import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.topics import COMMANDS
from tests.support.faults.raw_batches import (
    CODECS,
    HEADER_BYTES,
    Entry,
    based,
    batch,
    marker,
    packed_with,
    signed,
    varint,
)
from trinity_bus.bus.read import batches
from trinity_bus.bus.read.batches import HEAD_BYTES, MAX_FAULTS, FetchedRecords, Unreadable
from trinity_bus.bus.read.wire_format import MAX_HEADERS, MIN_BOUND, BodyError, Frames, unpack

PLACE = TopicPartition("ns.commands", 0)
GOOD: list[Entry] = [(b"k", b"value", [("h", b"1")]), (None, b"", []), (b"k", None, [("x", None)])]

names = st.text(max_size=5)
entries = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(names, st.none() | st.binary(max_size=8)), max_size=4),
    ),
    min_size=1,
    max_size=8,
)


def read(data: bytes, *, at: int = 0, aborted: list[tuple[int, int]] | None = None) -> FetchedRecords:
    return FetchedRecords(PLACE, Frames(data), aborted, at, None, None, True, READ_COMMITTED)


def read_log(batches: list[bytes], *, at: int = 0) -> Iterator[ConsumerRecord | Unreadable]:
    """Everything of a log from an offset on, in fetches as a broker answers them: from the batch with the offset on."""
    starts = [struct.unpack_from(">q", raw)[0] for raw in batches]
    end = starts[-1] + 3
    while at < end:
        first = max(index for index, start in enumerate(starts) if start <= at)
        records = read(b"".join(batches[first:]), at=at)
        yield from records
        assert records.next_fetch_offset > at, "reading goes on"
        at = records.next_fetch_offset


def values(items: list[ConsumerRecord | Unreadable]) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in items if isinstance(r, ConsumerRecord)]


def test_every_consumer_of_this_process_reads_with_it() -> None:
    assert batches.FetchedRecords is fetcher.PartitionRecords
    assert fetcher.MemoryRecords is Frames


@given(entries, st.sampled_from(sorted(CODECS.values())), st.integers(0, 1 << 40))
def test_good_batches_come_as_they_were_sent_however_packed(sent: list[Entry], codec: int, base: int) -> None:
    found: list[Any] = list(read(batch(sent, base=base, codec=codec), at=base))
    assert [(r.key, r.value, list(r.headers)) for r in found] == sent
    assert [r.offset for r in found] == list(range(base, base + len(sent)))
    assert [r.serialized_value_size for r in found] == [-1 if e[1] is None else len(e[1]) for e in sent]


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([0, 1, 3]))
@settings(max_examples=400)
def test_neighbours_of_a_damaged_batch_are_read_and_no_offset_twice(seed: int, changes: int, codec: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - makes up damage
    damaged = bytearray(batch(GOOD, base=3, codec=codec))
    for _ in range(changes):
        at = rng.randrange(12, len(damaged))
        match rng.randrange(3):
            case 0:
                damaged[at] = rng.randrange(256)
            case 1:
                damaged[at : at + 2] = varint(rng.choice([-2, -1, 2**31, 2**63 - 1, -(2**63), 2**40]))
            case _:
                del damaged[at : at + rng.randrange(1, 5)]
    # A length that is wrong is another matter: below.
    raw = bytes(damaged).ljust(HEADER_BYTES, b"\0")
    raw = signed(raw) if rng.random() < 0.7 else raw[:8] + struct.pack(">i", len(raw) - 12) + raw[12:]
    began = time.process_time()
    found = list(read_log([batch(GOOD), raw, batch(GOOD, base=6)]))
    assert time.process_time() - began < 0.5
    plain = values(list(read(batch(GOOD))))
    assert values(found)[:3] == plain
    if struct.unpack_from(">i", raw, 23)[0] == 2:
        # Else it says that it reaches over its neighbour, and a broker would not have it.
        assert [row[1:] for row in values(found)[-3:]] == [row[1:] for row in plain]
        spans = [(r.offset, r.last_offset if isinstance(r, Unreadable) else r.offset) for r in found]
        covered = [offset for begin, last in spans for offset in range(begin, last + 1)]
        # Offsets that a batch leaves out have been compacted away, for all that anyone can tell.
        assert {0, 1, 2, 6, 7, 8} <= set(covered) <= set(range(9))
        assert len(covered) == len(set(covered)) or any(isinstance(r, Unreadable) for r in found)
        returned = [r.offset for r in found if isinstance(r, ConsumerRecord)]
        assert returned == sorted(set(returned)), "in order, none twice"


def whole(raw: bytes) -> bytes:
    """Between two good ones."""
    return batch(GOOD) + based(raw, 3) + batch(GOOD, base=6)


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]


PLAIN = batch(GOOD)


@pytest.mark.parametrize(
    ("raw", "reason", "detail"),
    [
        pytest.param(flipped(PLAIN, 70), "corrupt", "its checksum is wrong", id="a bit"),
        pytest.param(flipped(PLAIN, 24), "corrupt", "its checksum is wrong", id="a bit of how many offsets it has"),
        *(
            pytest.param(packed_with(PLAIN, code, b"\xffgarbage" * 9), "corrupt", f"its {name} body is broken", id=name)
            for name, code in CODECS.items()
            if code
        ),
        pytest.param(packed_with(PLAIN, 3, b""), "corrupt", "its lz4 body is broken", id="an empty body"),
        pytest.param(packed_with(PLAIN, 5, PLAIN[61:]), "unknown_codec", "codec 5", id="a codec that nobody knows"),
        pytest.param(signed(PLAIN[:16] + b"\x03" + PLAIN[17:]), "unknown_format", "format 3", id="the format to come"),
        pytest.param(
            signed(PLAIN[:23] + struct.pack(">i", -7) + PLAIN[27:]), "corrupt", "offset", id="an end before it"
        ),
        pytest.param(
            signed(PLAIN[:57] + struct.pack(">i", 9) + PLAIN[61:]), "corrupt", "has no end", id="lacking records"
        ),
        pytest.param(signed(PLAIN + b"xx"), "corrupt", "2 bytes are left", id="more than its records"),
    ],
)
def test_a_batch_that_cannot_be_read_is_named_with_its_offsets(raw: bytes, reason: str, detail: str) -> None:
    found = list(read(whole(raw)))
    (bad,) = [item for item in found if isinstance(item, Unreadable)]
    assert (bad.reason, bad.topic, bad.partition) == (reason, *PLACE)
    assert detail in bad.detail
    assert bad.last_offset == 5
    assert bad.size == len(raw)
    assert bad.head == based(raw, 3)[:HEAD_BYTES]
    assert [r.offset for r in found if isinstance(r, ConsumerRecord)][-3:] == [6, 7, 8]


def test_a_fetch_may_begin_and_end_amid_a_batch_and_a_length_of_nonsense_costs_one_offset_at_a_time() -> None:
    for length in (-1, 3, 48, 2**31 - 1):
        broken = based(PLAIN[:8] + struct.pack(">i", length) + PLAIN[12:], 3)
        records = read(broken + batch(GOOD, base=6), at=3)
        (bad,) = records
        assert (bad.reason, bad.offset, bad.last_offset) == ("bad_frame", 3, 3)
        assert records.next_fetch_offset == 4
    second = batch(GOOD, base=3)
    for cut in range(1, len(second)):
        records = read(PLAIN + second[:cut])
        assert [item.offset for item in records] == [0, 1, 2]
        assert records.next_fetch_offset == 3
    for codec in CODECS.values():
        assert [r.offset for r in read(batch(GOOD, codec=codec) + batch(GOOD, base=3), at=2)] == [2, 3, 4, 5]
    (bad, *_) = read(packed_with(PLAIN, 2, b"garbage"), at=1)
    assert (bad.offset, bad.last_offset) == (1, 2)


def test_one_bad_record_costs_itself_alone_and_many_cost_the_rest() -> None:
    poison = ("POISON", b"")
    sent: list[Entry] = [(b"k", b"%d" % n, [poison] if n in {1, 3} else []) for n in range(5)]
    found = list(read(signed(batch(sent).replace(b"POISON", b"\xff\xfe\xff\xfe\xff\xfe"))))
    assert [r.offset for r in found if isinstance(r, ConsumerRecord)] == [0, 2, 4]
    assert [(r.offset, r.last_offset, r.reason) for r in found if isinstance(r, Unreadable)] == [
        (1, 1, "bad_header"),
        (3, 3, "bad_header"),
    ]
    many = list(read(signed(batch([(b"k", b"", [poison])] * 50).replace(b"POISON", b"\xff\xfe\xff\xfe\xff\xfe"))))
    assert [item.offset for item in many] == list(range(MAX_FAULTS + 1))
    assert many[-1].last_offset == 49


def test_offsets_that_do_not_rise_or_leave_their_batch_lose_nothing_behind_it() -> None:
    def record(offset_delta: int) -> bytes:
        inner = b"\0" + varint(0) + varint(offset_delta) + varint(-1) + varint(1) + b"v" + varint(0)
        return varint(len(inner)) + inner

    for deltas in ((0, 0, 1), (0, 1_000_000, 2), (-5, 1, 2), (2, 1, 0)):
        raw = packed_with(PLAIN, 0, b"".join(record(delta) for delta in deltas))
        records = read(whole(raw))
        found = list(records)
        assert [r.offset for r in found if isinstance(r, ConsumerRecord)][-3:] == [6, 7, 8]
        (bad,) = [item for item in found if isinstance(item, Unreadable)]
        assert (bad.reason, bad.last_offset) == ("corrupt", 5)
        assert "are left" in bad.detail
        assert records.next_fetch_offset == 9


def test_aborted_records_are_left_out_also_around_a_batch_that_cannot_be_read() -> None:
    log = [
        batch([(b"k", b"aborted", [])], base=0, transaction_of=7),
        packed_with(batch([(b"k", b"also aborted", [])], base=1, transaction_of=7), 4, b"garbage"),
        marker(7, base=2, commit=False),
        batch([(b"k", b"committed", [])], base=3, transaction_of=7),
        packed_with(batch([(b"k", b"lost", [])], base=4, transaction_of=7), 4, b"garbage"),
        marker(7, base=5, commit=True),
    ]
    records = read(b"".join(based(raw, base) for base, raw in enumerate(log)), aborted=[(7, 0)])
    found = list(records)
    assert [getattr(item, "value", None) for item in found] == [b"committed", None]
    assert [item.offset for item in found] == [3, 4]
    assert records.next_fetch_offset == 6


def read_in_little(data: bytes) -> list[Any]:
    """All that is read, for which no more memory is taken than for any body."""
    tracemalloc.start()
    began = time.process_time()
    found = list(read(data))
    assert time.process_time() - began < 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MIN_BOUND, f"{peak >> 20} MiB"
    return found


@pytest.mark.parametrize("codec", [code for code in CODECS.values() if code])
def test_what_unpacks_to_100_mib_is_not_unpacked(codec: int) -> None:
    found = read_in_little(whole(batch([(b"k", bytes(100 << 20), [])], codec=codec)))
    (bad,) = [item for item in found if isinstance(item, Unreadable)]
    assert (bad.reason, bad.offset, bad.last_offset) == ("too_large", 3, 3)
    assert len(found) == 7


def test_a_record_over_the_limit_of_its_topic_is_cut_and_those_beside_it_are_read() -> None:
    large = bytes(COMMANDS.max_message_bytes + 1)
    found = list(read(batch([(b"a", b"1", []), (b"b", large, []), (b"c", b"2", [])], codec=4)))
    assert [getattr(item, "value", None) for item in found] == [b"1", None, b"2"]
    bad = found[1]
    assert (bad.reason, bad.offset, bad.last_offset, bad.key) == ("too_large", 1, 1, b"b")
    assert (len(bad.head), bad.size) == (HEAD_BYTES, len(large))


def test_a_million_headers_cost_no_memory() -> None:
    def bomb(size: int) -> bytes:
        headers = b"\0\0" * (size // 2)
        inner = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(len(headers) // 2) + headers
        raw = batch([(None, None, [])])
        return packed_with(raw, 4, bytes(cramjam.zstd.compress(varint(len(inner)) + inner)))

    for size in (600, 15 << 20):
        (bad,) = read_in_little(bomb(size))
        assert bad.reason == "bad_header"
        assert f"the limit is {MAX_HEADERS}" in bad.detail


def test_a_fetch_that_unpacks_to_much_is_taken_in_pieces() -> None:
    value = bytes(1 << 20)
    log = [batch([(b"k", value, [])] * 5, base=5 * n, codec=4) for n in range(20)]
    assert sum(map(len, log)) < 1 << 20
    taken: list[Any] = []
    at, fetches = 0, 0
    while at < 100:
        records = read(b"".join(log[at // 5 :]), at=at)
        got = [record.offset for record in records]
        assert 0 < len(got) <= 15, "at most so much at once"
        taken, at, fetches = taken + got, records.next_fetch_offset, fetches + 1
    assert taken == list(range(100))
    assert fetches > 5


@given(st.binary(max_size=300), st.integers(0, 7))
def test_unpacking_anything_gives_bytes_or_a_reason(body: bytes, codec: int) -> None:
    try:
        size = len(unpack(codec, memoryview(body), 1000))
    except BodyError as error:
        size = 0
        reason = error.reason
    else:
        reason = "corrupt"
    assert size <= 1000
    assert reason in {"unknown_codec", "too_large", "corrupt"}
