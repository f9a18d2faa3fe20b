"""Experience groups on the wire: a msgpack array of a header map and one binary that holds every buffer.

The header's ``buffers`` map says where in the binary each column lies: ``{name: [dtype, shape, offset, nbytes]}``.
Offsets are multiples of 8, and the header is padded so that the binary itself starts at a multiple of 8 of the message.
Encoding is one ``join``, the only copy; decoding lays read-only views over the message, which lives as long as any of
them.

This is the way of every token, so neither direction goes through pydantic: msgspec checks the header against the types
below while it parses, skips what they do not name without building it, and hands out the binary uncopied.
"""

from itertools import starmap
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.msgpack import Decoder, Encoder
from numpy.typing import NDArray

from schemas.errors import DecodeError, EncodeError, UnsupportedVersion, shown
from schemas.experience import COLUMNS, MAX_METRICS, MAX_SAMPLES, ExperienceGroup
from schemas.group_rules import check_group, check_metrics
from schemas.record import BatchType, Metrics

MAX_HEADER_BYTES = 4 << 20

_ALIGNMENT = 8
_ARRAY_OF_TWO = b"\x92"
_BIN32 = b"\xc6"
_BIN32_HEAD = 5
_ZEROS = tuple(bytes(n) for n in range(_ALIGNMENT))
_EMPTY_STRING = 0xA0
_PADDING = tuple(bytes([_EMPTY_STRING + n]) + b" " * n for n in range(_ALIGNMENT))

# Unpacked once: attribute look-ups would cost a tenth of the time of a decode.
_TABLE: tuple[tuple[str, str, np.dtype[Any], int, int], ...] = tuple(
    (column.name, column.dtype_name, column.dtype, column.dtype.itemsize, column.width) for column in COLUMNS
)

type _Size = Annotated[int, Meta(ge=0)]


class _Buffer(Struct, array_like=True, gc=False):
    dtype: str
    shape: tuple[int, ...]
    offset: _Size
    nbytes: _Size


class _Buffers(Struct):
    tokens: _Buffer
    lengths: _Buffer
    prompt_lengths: _Buffer
    logprobs: _Buffer
    mask_bits: _Buffer
    rewards: _Buffer
    run_ids: _Buffer
    versions: _Buffer


class _Name(Struct):
    """What a header says of its kind: read first where the rest cannot be read."""

    schema: str
    schema_version: int


class _Header(_Name):
    task_id: str
    attempt: int
    batch_id: str
    batch_type: BatchType
    workflow: str
    model: str
    explorer: str
    incarnation: str
    buffers: _Buffers
    metrics: Annotated[list[Annotated[Metrics, Meta(max_length=MAX_METRICS)]], Meta(max_length=MAX_SAMPLES)] = []
    finish_reasons: Annotated[list[str], Meta(max_length=MAX_SAMPLES)] = []
    padding: str = ""


_encode_header = Encoder().encode
_decode_message = Decoder(tuple[_Header, memoryview]).decode
_decode_name = Decoder(tuple[_Name, msgspec.Raw]).decode


def encode_group(group: ExperienceGroup) -> bytes:
    """``group`` as bytes, copying its buffers once.

    Raises:
        EncodeError: Its buffers contradict each other, have another dtype or are not contiguous, a header field is not
            valid, or it is over a size limit.
    """
    table = []
    parts: list[Any] = [_ARRAY_OF_TWO, b"", b"", b""]
    offset = 0
    for name, dtype_name, dtype, itemsize, width in _TABLE:
        array: NDArray[Any] = getattr(group, name)
        if array.dtype != dtype or array.ndim != (1 if width == 1 else 2) or array.size != len(array) * width:
            wanted = f"{dtype} with shape {'[n]' if width == 1 else f'[n, {width}]'}"
            raise EncodeError(f"experience: {name} is {array.dtype} with shape {list(array.shape)}, not {wanted}")
        nbytes = array.size * itemsize
        table.append((dtype_name, array.shape, offset, nbytes))
        if nbytes:
            parts.append(array)
        gap = -nbytes % _ALIGNMENT
        if gap:
            parts.append(_ZEROS[gap])
        offset += nbytes + gap
    try:
        check_group(group)
        check_metrics(group)
    except DecodeError as error:
        raise EncodeError(error.detail) from error
    header = _packed_header(group, table)
    unpadded = len(_ARRAY_OF_TWO) + len(header) + _BIN32_HEAD
    total = unpadded + -unpadded % _ALIGNMENT + offset
    if total > group.MAX_BYTES or len(header) > MAX_HEADER_BYTES:
        raise EncodeError(
            f"experience: {total} bytes with a header of {len(header)}, "
            f"the limits are {group.MAX_BYTES} and {MAX_HEADER_BYTES}"
        )
    parts[1] = header[:-1]
    parts[2] = _PADDING[-unpadded % _ALIGNMENT]
    parts[3] = _BIN32 + offset.to_bytes(4, "big")
    try:
        return b"".join(parts)
    except TypeError as error:
        raise EncodeError("experience: a buffer is not contiguous; use numpy.ascontiguousarray") from error


def _packed_header(group: ExperienceGroup, table: list[tuple[str, tuple[int, ...], int, int]]) -> bytes:
    """The header map, whose last byte is the empty string of the padding."""
    header = _Header(
        schema=group.SCHEMA,
        schema_version=group.VERSION,
        task_id=group.task_id,
        attempt=group.attempt,
        batch_id=group.batch_id,
        batch_type=group.batch_type,
        workflow=group.workflow,
        model=group.model,
        explorer=group.explorer,
        incarnation=group.incarnation,
        buffers=_Buffers(*starmap(_Buffer, table)),
        metrics=group.metrics,
        finish_reasons=group.finish_reasons,
    )
    try:
        return _encode_header(header)
    except (TypeError, ValueError, OverflowError) as error:
        raise EncodeError(f"experience: {error}") from error


def decode_group(value: bytes) -> ExperienceGroup:
    """The group in ``value``, its arrays read-only views into it.

    Raises:
        DecodeError: ``value`` breaks the format, or a rule that ``encode_group`` keeps.
    """
    if len(value) > ExperienceGroup.MAX_BYTES:
        raise DecodeError("too_large", f"experience: {len(value)} bytes, the limit is {ExperienceGroup.MAX_BYTES}")
    try:
        header, binary = _decode_message(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(value, error) from error
    if header.schema != ExperienceGroup.SCHEMA or header.schema_version != ExperienceGroup.VERSION:
        _refuse_schema(header)
    if len(value) - len(binary) > MAX_HEADER_BYTES:
        raise DecodeError("too_large", f"experience: a header of more than {MAX_HEADER_BYTES} bytes")
    group = ExperienceGroup(
        task_id=header.task_id,
        attempt=header.attempt,
        batch_id=header.batch_id,
        batch_type=header.batch_type,
        workflow=header.workflow,
        model=header.model,
        explorer=header.explorer,
        incarnation=header.incarnation,
        metrics=header.metrics,
        finish_reasons=header.finish_reasons,
        **_views(binary, header.buffers),
    )
    check_group(group)
    return group


def _unreadable(value: bytes, error: Exception) -> DecodeError:
    """What msgspec's complaint means. A header of another kind or version is that before it is anything else."""
    try:
        _refuse_schema(_decode_name(value)[0])
    except DecodeError as other:
        return other
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    text = str(error)
    return DecodeError(_reason(error, text), f"experience: {text}")


def _reason(error: Exception, text: str) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "bad_text"
    if isinstance(error, RecursionError):
        return "too_deep"
    if isinstance(error, msgspec.ValidationError):
        if "missing required field" in text:
            return "missing_field"
        return "too_large" if "length <=" in text else "wrong_type"
    if "truncated" in text:
        return "truncated"
    return "trailing_bytes" if "trailing" in text else "not_msgpack_or_json"


def _refuse_schema(header: _Name) -> None:
    if header.schema != ExperienceGroup.SCHEMA:
        raise DecodeError("unexpected_schema", f"schema = {shown(header.schema)} in the framing of an experience")
    if header.schema_version != ExperienceGroup.VERSION:
        raise UnsupportedVersion(header.schema, header.schema_version, ExperienceGroup.VERSION)


def _views(binary: memoryview, buffers: _Buffers) -> dict[str, NDArray[Any]]:
    """The arrays that the header describes, over the binary."""
    size = len(binary)
    views = {}
    for name, dtype_name, dtype, itemsize, width in _TABLE:
        buffer: _Buffer = getattr(buffers, name)
        offset, nbytes = buffer.offset, buffer.nbytes
        if buffer.dtype != dtype_name:
            raise _bad_buffer(name, buffer, f"must have dtype {dtype_name}")
        if offset % _ALIGNMENT:
            raise _bad_buffer(name, buffer, f"must have an offset divisible by {_ALIGNMENT}")
        if offset + nbytes > size:
            raise _bad_buffer(name, buffer, f"must lie within the {size} bytes of the binary")
        count = nbytes // itemsize
        rows = count // width
        if buffer.shape != ((rows,) if width == 1 else (rows, width)) or rows * width * itemsize != nbytes:
            raise _bad_buffer(name, buffer, "must have the shape that its nbytes hold")
        view = np.frombuffer(binary, dtype, count, offset)
        views[name] = view if width == 1 else view.reshape(rows, width)
    return views


def _bad_buffer(name: str, buffer: _Buffer, rule: str) -> DecodeError:
    entry = [buffer.dtype, list(buffer.shape), buffer.offset, buffer.nbytes]
    return DecodeError("bad_buffer", f"experience: buffers.{name} = {shown(entry)} {rule}")
