"""Whatever the bytes are, a reader gets a record or a ``DecodeError``, and no memory that the bytes do not pay for."""

import struct
import tracemalloc
from typing import Any

import msgpack
import pytest

from schemas import BatchRecord, ExperienceGroup, ExplorerLeft, ModelVersion, Task
from schemas.codec import RECORDS, DecodeError, EncodeError, UnsupportedVersion, decode, encode
from schemas.errors import MAX_DETAIL_CHARS
from schemas.fields.free_form import MAX_ITEMS
from tests.unit.schemas.record_strategies import small_group

TASK: dict[str, Any] = {"schema": "task", "schema_version": 1, "task_id": "t", "workflow": "math", "prompt": "1+1"}


def reason_of(value: bytes, *expect: type) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(value, *(expect or RECORDS))
    error = caught.value
    assert error.detail
    assert error.detail.isprintable()
    assert len(error.detail) <= MAX_DETAIL_CHARS * 10  # each character may be escaped
    return error.reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "truncated"),
        (b"\xc1", "not_msgpack_or_json"),
        (b"hello", "not_msgpack_or_json"),
        (b"\x81\xc1", "not_msgpack_or_json"),
        (b"{nope", "not_msgpack_or_json"),
        (msgpack.packb(TASK)[:-1], "truncated"),
        (msgpack.packb(TASK) + b"\x00", "trailing_bytes"),
        (msgpack.packb({}), "missing_field"),
        (msgpack.packb({"schema": 7}), "wrong_type"),
        (msgpack.packb({"schema": "nope", "schema_version": 1}), "unknown_schema"),
        (msgpack.packb({"schema": "a\nb\x1b[31m" * 5000, "schema_version": 1}), "unknown_schema"),
        (msgpack.packb({**TASK, "schema": "experience"}), "unexpected_schema"),
        (msgpack.packb({"schema": "task"}), "missing_field"),
        (msgpack.packb({**TASK, "schema_version": True}), "wrong_type"),
        (msgpack.packb({**TASK, "schema_version": 2}), "unsupported_version"),
        (msgpack.packb({**TASK, "schema_version": 0}), "unsupported_version"),
        (msgpack.packb({**TASK, "workflow": 3}), "wrong_type"),
        (msgpack.packb({**TASK, "workflow": "two words"}), "bad_value"),
        (msgpack.packb({**TASK, "repeat_times": 8.0}), "wrong_type"),
        (msgpack.packb({**TASK, "repeat_times": True}), "wrong_type"),
        (msgpack.packb({**TASK, "repeat_times": 0}), "bad_value"),
        (msgpack.packb({**TASK, "timeout_s": float("nan")}), "bad_value"),
        (msgpack.packb({**TASK, "prompt": b"raw"}), "wrong_type"),
        (msgpack.packb({**TASK, "data": {"a": b""}}), "bad_value"),
        (msgpack.packb({**TASK, "data": msgpack.Timestamp(1, 0)}), "wrong_type"),
        (msgpack.packb({**TASK, "prompt": "?"}).replace(b"?", b"\xff"), "bad_text"),
        (msgpack.packb({k: v for k, v in TASK.items() if k != "prompt"}), "bad_value"),
        (b"\x81" * 5000, "wrong_type"),
        (b"\x81\xa1a" * 5000 + b"\x00", "too_deep"),
    ],
)
def test_reasons_of_plain_records(value: bytes, reason: str) -> None:
    assert reason_of(value, Task) == reason


def test_the_detail_names_field_or_buffer_and_value() -> None:
    with pytest.raises(DecodeError, match=r"wrong_type: task: repeat_times = 'eight': Input should be a valid integer"):
        decode(msgpack.packb({**TASK, "repeat_times": "eight"}), Task)
    with pytest.raises(DecodeError, match="missing_field: task: workflow is missing"):
        decode(msgpack.packb({k: v for k, v in TASK.items() if k != "workflow"}), Task)
    with pytest.raises(UnsupportedVersion, match="task: schema_version = 9, this reader knows 1"):
        decode(msgpack.packb({**TASK, "schema_version": 9}), Task)
    with pytest.raises(DecodeError, match=r"buffers.tokens = \['<i4', \(16,\), 800, 64\] .* within the \d+ bytes"):
        decode(with_buffer("tokens", ["<i4", [16], 800, 64]), ExperienceGroup)


def test_a_record_of_another_kind_is_told_from_an_unknown_one_and_from_parts_of_records() -> None:
    left = encode(ExplorerLeft(explorer="e", incarnation="i"))
    assert reason_of(left, Task) == "unexpected_schema"
    assert reason_of(left, ExperienceGroup) == "unexpected_schema"
    assert reason_of(encode(small_group()), Task) == "bad_framing"
    from schemas import Position

    with pytest.raises(TypeError, match="must name types that travel by themselves"):
        decode(b"\x80", Position)
    with pytest.raises(TypeError, match="must name types"):
        decode(b"\x80")


def test_unknown_fields_are_ignored() -> None:
    assert decode(msgpack.packb({**TASK, "from_the_future": {"a": [1]}}), Task).task_id == "t"
    assert decode(with_header(lambda h: h | {"from_the_future": {"a": [1, b"x"]}}), ExperienceGroup).task_id == "task-1"


# Groups


def with_header(change: Any, *, binary: bytes | None = None) -> bytes:
    header, buffers = msgpack.unpackb(encode(small_group()))
    return b"\x92" + msgpack.packb(change(header)) + msgpack.packb(buffers if binary is None else binary)


def with_buffer(name: str, entry: Any) -> bytes:
    return with_header(lambda h: h | {"buffers": h["buffers"] | {name: entry}})


def without(name: str) -> Any:
    return lambda header: {key: value for key, value in header.items() if key != name}


def test_a_group_rebuilt_by_another_writer_is_read() -> None:
    """Shorter length fields and no padding: what a plain msgpack writer makes."""
    group = decode(with_header(without("padding")), ExperienceGroup)
    assert group.tokens.tolist() == small_group().tokens.tolist()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (encode(small_group())[:-1], "truncated"),
        (encode(small_group())[:40], "truncated"),
        (encode(small_group()) + b"\x00", "trailing_bytes"),
        (b"\x90", "bad_framing"),
        (b"\x91\x80", "bad_framing"),
        (b"\x93" + encode(small_group())[1:] + b"\x00", "bad_framing"),
        (with_header(lambda h: [h]), "bad_framing"),
        (with_header(without("schema")), "missing_field"),
        (with_header(without("task_id")), "missing_field"),
        (with_header(without("buffers")), "missing_field"),
        (with_header(lambda h: h | {"schema": "task"}), "unexpected_schema"),
        (with_header(lambda h: h | {"schema_version": 2}), "unsupported_version"),
        (with_header(lambda h: {"schema": "experience", "schema_version": 2, "all": "else"}), "unsupported_version"),
        (with_header(lambda h: h | {"attempt": "1"}), "wrong_type"),
        (with_header(lambda h: h | {"attempt": 0}), "bad_value"),
        (with_header(lambda h: h | {"attempt": 1 << 63}), "wrong_type"),
        (with_header(lambda h: h | {"task_id": "two\nlines"}), "bad_value"),
        (with_header(lambda h: h | {"task_id": "t" * 201}), "bad_value"),
        (with_header(lambda h: h | {"batch_type": "test"}), "bad_value"),
        (with_header(lambda h: h | {"metrics": [{}] * 3}), "bad_value"),
        (with_header(lambda h: h | {"metrics": [{"a": "b"}] * 2}), "wrong_type"),
        (with_header(lambda h: h | {"metrics": [{}] * 20_000}), "too_large"),
        (with_header(lambda h: h | {"metrics": [{str(i): 0.0 for i in range(65)}] * 2}), "too_large"),
        (with_header(lambda h: h | {"finish_reasons": ["stop"]}), "bad_value"),
        (with_header(lambda h: h | {"task_id": "?"}).replace(b"\xa1?", b"\xa1\xff"), "bad_text"),
        (with_header(lambda h: h | {"future": "x" * (5 << 20)}), "too_large"),
        (with_header(lambda h: h, binary=b""), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [16], 0]), "bad_buffer"),
        (with_buffer("tokens", ["<i8", [8], 0, 64]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [15], 0, 64]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [4, 4], 0, 64]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [16], 4, 64]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [16], -8, 64]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [16], 1 << 40, 64]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [1 << 40], 0, 1 << 42]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [-16], 0, -64]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [2**64 - 1], 0, 64]), "bad_buffer"),
        (with_buffer("tokens", ["<i4", [8], 0, 32]), "bad_buffer"),
        (with_buffer("lengths", ["<i4", [0], 0, 0]), "bad_buffer"),
        (with_buffer("rewards", ["<f4", [1], 0, 4]), "bad_buffer"),
        (with_buffer("logprobs", ["<f4", [9], 0, 36]), "bad_buffer"),
        (with_buffer("mask_bits", ["|u1", [3], 0, 3]), "bad_buffer"),
        (with_buffer("versions", ["<i4", [2, 2], 0, 16]), "bad_buffer"),
        (with_buffer("versions", ["<i4", [4, 3], 0, 48]), "bad_buffer"),
        (with_buffer("turn_starts", None), "bad_buffer"),
        (with_buffer("turn_starts", ["<i4", [2], 0, 8]), "bad_buffer"),
        (with_buffer("turn_starts", ["<i4", [8, 2], 0, 64]), "bad_buffer"),
        (with_buffer("turn_starts", ["<i4", [1, 2], 1 << 40, 8]), "bad_buffer"),
        (with_buffer("turn_rewards", ["<f4", [1], 0, 4]), "bad_buffer"),
        (with_buffer("sampling", ["<f4", [1, 4], 0, 16]), "bad_buffer"),
        (with_buffer("sampling", ["<f4", [2, 3], 0, 24]), "bad_buffer"),
        (with_buffer("teacher_logprobs", ["<f4", [9], 0, 36]), "bad_buffer"),
        (with_buffer("routes", ["|u1", [16, 0, 1], 0, 0]), "bad_buffer"),
        (with_buffer("routes", ["|u1", [15, 1, 1], 0, 15]), "bad_buffer"),
        (with_buffer("routes", ["|u1", [16, 1, 257], 0, 16 * 257]), "bad_buffer"),
        (with_buffer("routes", ["|u1", [16, 1 << 62, 4], 0, 0]), "bad_buffer"),
        (with_buffer("kept", ["|u1", [8], 0, 8]), "bad_buffer"),
        (with_buffer("kept_sizes", ["<i4", [2], 0, 8]), "bad_buffer"),
    ],
)
def test_reasons_of_groups(value: bytes, reason: str) -> None:
    assert reason_of(value, ExperienceGroup) == reason


@pytest.mark.parametrize(
    "versions",
    [
        [[0, 0, -1]],
        [[2, 0, 1]],
        [[-1, 0, 1]],
        [[0, 6, 1]],
        [[0, -1, 1]],
        [[1, 0, 1], [0, 0, 1]],
        [[0, 2, 1], [0, 2, 1]],
        [[0, 2, 1], [0, 1, 1]],
    ],
)
def test_version_spans_must_be_in_order_and_in_range(versions: list[list[int]]) -> None:
    import numpy as np
    from msgspec.structs import replace

    with pytest.raises(EncodeError, match="ordered by sample and start"):
        encode(replace(small_group(), versions=np.array(versions, np.int32)))


# Memory: a small message must not make a reader allocate much.


def peak_bytes(value: bytes, *expect: type) -> int:
    tracemalloc.start()
    try:
        assert reason_of(value, *expect) in ("truncated", "too_large", "too_deep", "missing_field")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HUGE_ARRAY = b"\xdd\xff\xff\xff\xff"
HUGE_MAP = b"\xdf\xff\xff\xff\xff"
WIDE = b"\xdd" + struct.pack(">I", MAX_ITEMS)


@pytest.mark.parametrize(
    "value",
    [
        b"\x81\xa1a" + HUGE_ARRAY,
        HUGE_MAP,
        b"\x81\xa1a" + b"\xdb\xff\xff\xff\xff",
        b"\x81\xa1a" + b"\xc6\xff\xff\xff\xff",
        b"\x81\xa1a" + WIDE * 900,
        b"\x92\x81\xa7metrics" + HUGE_ARRAY,
        b"\x92\x81\xa7buffers" + HUGE_MAP,
        b"\x92\x81\xa7unknown" + WIDE * 900,
        b"\x92\x81\xa7unknown" + b"\x91" * 100_000,
        b"\x92\x80\xc6\xff\xff\xff\xff",
    ],
)
def test_declared_lengths_allocate_nothing(value: bytes) -> None:
    assert peak_bytes(value, Task, ExperienceGroup) < 200_000 + 8 * len(value)


def test_sizes_are_checked_first_and_each_record_has_its_own_limit() -> None:
    assert reason_of(b"\x80" * (Task.MAX_BYTES + 1), Task) == "too_large"
    assert reason_of(b"\x80" * ((1 << 20) + 1), ModelVersion) == "too_large"
    assert peak_bytes(b"\x92" * (ExperienceGroup.MAX_BYTES + 1), ExperienceGroup) < 10_000
    large = msgpack.packb({"schema": "model_version", "schema_version": 1, "x": "y" * (2 << 20)})
    assert reason_of(large, ModelVersion, BatchRecord) == "too_large"


@pytest.mark.parametrize("item", ["1.5", "1e9"])
def test_a_task_that_would_outgrow_its_limit_when_passed_on_is_refused(item: str) -> None:
    """JSON's "1.5," is four bytes, msgpack's is nine: the coordinator must be able to send on what it accepts."""
    lists = ",".join(f"[{','.join([item] * MAX_ITEMS)}]" for _ in range(15))
    value = f'{{"task_id":"t","workflow":"w","data":{{"a":[{lists}]}}}}'.encode()
    assert len(value) < Task.MAX_BYTES
    assert reason_of(value, Task) == "too_large"
