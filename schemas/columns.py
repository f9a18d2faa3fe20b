"""Experience groups on the wire: a msgpack array of a header map and one binary that holds every buffer.

The header's ``buffers`` map says where in the binary each column lies: ``{name: [dtype, shape, offset, nbytes]}``.
Offsets are multiples of 8, and the header is padded so that the binary itself starts at a multiple of 8 of the message.
Encoding is one ``join``, the only copy; decoding parses the header from a prefix and lays read-only views over the
message, which lives as long as any of them. Neither goes through pydantic.
"""

import struct
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from schemas.errors import DecodeError, EncodeError, shown
from schemas.experience import COLUMNS, ExperienceGroup
from schemas.group_rules import check_group
from schemas.plain import ContainerBudget, check_version, refuse_extension, schema_of, unpack_error
from schemas.record import MAX_ITEMS

_ALIGNMENT = 8
_ARRAY_OF_TWO = b"\x92"
_BIN32 = b"\xc6"
_BIN32_HEAD = 5
_ZEROS = tuple(bytes(n) for n in range(_ALIGNMENT))
_EMPTY_STRING = 0xA0
_PADDING = tuple(bytes([_EMPTY_STRING + n]) + b" " * n for n in range(_ALIGNMENT))

_PREFIX = 4096
"""Headers nearly always fit; a longer one is parsed again with care."""
_PREFIX_ITEMS = 256
MAX_HEADER_BYTES = 4 << 20

_BIN_LENGTHS = {0xC4: struct.Struct(">B"), 0xC5: struct.Struct(">H"), 0xC6: struct.Struct(">I")}

# Unpacked once: attribute look-ups would cost a tenth of the time of a decode.
_TABLE: tuple[tuple[str, str, np.dtype[Any], int, int], ...] = tuple(
    (column.name, column.dtype_name, column.dtype, column.dtype.itemsize, column.width) for column in COLUMNS
)


def encode_group(group: ExperienceGroup) -> bytes:
    """``group`` as bytes, copying its buffers once.

    Raises:
        EncodeError: Its buffers contradict each other, have another dtype or are not contiguous, a header field is not
            valid, or it is over the size limit.
    """
    table = {}
    parts: list[Any] = [_ARRAY_OF_TWO, b"", b"", b""]
    offset = 0
    for name, dtype_name, dtype, itemsize, width in _TABLE:
        array: NDArray[Any] = getattr(group, name)
        if array.dtype != dtype or array.ndim != (2 if width else 1) or (width and array.shape[1] != width):
            wanted = f"{dtype} with shape {f'[n, {width}]' if width else '[n]'}"
            raise EncodeError(f"experience: {name} is {array.dtype} with shape {list(array.shape)}, not {wanted}")
        nbytes = array.size * itemsize
        table[name] = (dtype_name, array.shape, offset, nbytes)
        if nbytes:
            parts.append(array)
        gap = -nbytes % _ALIGNMENT
        if gap:
            parts.append(_ZEROS[gap])
        offset += nbytes + gap
    try:
        check_group(group)
    except DecodeError as error:
        raise EncodeError(error.detail) from error
    header = _header(group, table)
    unpadded = len(_ARRAY_OF_TWO) + len(header) + _BIN32_HEAD
    total = unpadded + _ALIGNMENT + offset
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


def _header(group: ExperienceGroup, table: Mapping[str, Any]) -> bytes:
    """The header map, whose last byte is the empty string of the padding."""
    fields = {
        "schema": group.SCHEMA,
        "schema_version": group.VERSION,
        "task_id": group.task_id,
        "attempt": group.attempt,
        "batch_id": group.batch_id,
        "batch_type": group.batch_type,
        "workflow": group.workflow,
        "model": group.model,
        "explorer": group.explorer,
        "incarnation": group.incarnation,
        "metrics": group.metrics,
        "finish_reasons": group.finish_reasons,
        "buffers": table,
        "padding": "",
    }
    try:
        packed: bytes = msgpack.Packer(buf_size=_PREFIX).pack(fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise EncodeError(f"experience: {error}") from error
    return packed


def decode_group(value: bytes) -> ExperienceGroup:
    """The group in ``value``, its arrays read-only views into it.

    Raises:
        DecodeError: ``value`` breaks the format, or a rule that ``encode_group`` keeps.
    """
    if len(value) > ExperienceGroup.MAX_BYTES:
        raise DecodeError("too_large", f"experience: {len(value)} bytes, the limit is {ExperienceGroup.MAX_BYTES}")
    header, end = _parse_header(value)
    if header.get("schema") != ExperienceGroup.SCHEMA or header.get("schema_version") != ExperienceGroup.VERSION:
        _refuse_schema(header)
    base, size = _binary(value, end)
    try:
        group = ExperienceGroup(
            task_id=header["task_id"],
            attempt=header["attempt"],
            batch_id=header["batch_id"],
            batch_type=header["batch_type"],
            workflow=header["workflow"],
            model=header["model"],
            explorer=header["explorer"],
            incarnation=header["incarnation"],
            metrics=header.get("metrics", []),
            finish_reasons=header.get("finish_reasons", []),
            **_views(value, header["buffers"], base, size),
        )
    except KeyError as error:
        raise DecodeError("missing_field", f"experience: {error.args[0]} is missing") from error
    check_group(group)
    return group


def _parse_header(value: bytes) -> tuple[dict[str, Any], int]:
    """The header and where it ends."""
    unpacker = msgpack.Unpacker(
        None,
        read_size=_PREFIX,
        max_buffer_size=_PREFIX,
        max_array_len=_PREFIX_ITEMS,
        max_map_len=_PREFIX_ITEMS,
        max_bin_len=0,
        ext_hook=refuse_extension,
    )
    unpacker.feed(value[:_PREFIX])
    try:
        if unpacker.read_array_header() == 2:
            header = unpacker.unpack()
            if type(header) is dict:
                return header, unpacker.tell()
    except (msgpack.OutOfData, msgpack.FormatError, msgpack.StackError, ValueError):
        return _parse_long_header(value)
    raise DecodeError("bad_framing", "experience: not an array of a header map and a binary")


def _parse_long_header(value: bytes) -> tuple[dict[str, Any], int]:
    """Like ``_parse_header``, of any header: first walked, then built, then counted; or the error told exactly."""
    prefix = value[: 1 + MAX_HEADER_BYTES]
    budget = ContainerBudget()
    walker = msgpack.Unpacker(read_size=len(prefix), max_buffer_size=len(prefix))
    walker.feed(prefix)
    builder = msgpack.Unpacker(
        read_size=len(prefix),
        max_buffer_size=len(prefix),
        object_hook=budget.take,
        list_hook=budget.take,
        ext_hook=refuse_extension,
        max_array_len=MAX_ITEMS,
        max_map_len=MAX_ITEMS,
        max_bin_len=0,
    )
    builder.feed(prefix)
    try:
        if walker.read_array_header() == 2:
            walker.skip()
            builder.read_array_header()
            header = builder.unpack()
            if isinstance(header, dict):
                return header, builder.tell()
    except msgpack.OutOfData as error:
        if len(prefix) < len(value):
            detail = f"experience: a header of more than {MAX_HEADER_BYTES} bytes"
            raise DecodeError("too_large", detail) from error
        raise unpack_error(error, value) from error
    except (msgpack.FormatError, msgpack.StackError, ValueError) as error:
        raise unpack_error(error, value) from error
    raise DecodeError("bad_framing", "experience: not an array of a header map and a binary")


def _binary(value: bytes, end: int) -> tuple[int, int]:
    """Where the binary after the header starts, and its size."""
    length = _BIN_LENGTHS.get(value[end]) if end < len(value) else None
    if length is None:
        raise DecodeError("bad_framing", f"experience: no binary after the header, at byte {end} of {len(value)}")
    start = end + 1 + length.size
    if start > len(value):
        raise DecodeError("truncated", f"experience: ends within the length of its binary, after {len(value)} bytes")
    size: int = length.unpack_from(value, end + 1)[0]
    if start + size > len(value):
        raise DecodeError("truncated", f"experience: {len(value) - start} bytes of a binary of {size}")
    if start + size < len(value):
        raise DecodeError("trailing_bytes", f"experience: {len(value) - start - size} bytes after the binary")
    return start, size


def _refuse_schema(header: dict[str, Any]) -> None:
    schema = schema_of(header)
    if schema != ExperienceGroup.SCHEMA:
        raise DecodeError("unexpected_schema", f"schema = {shown(schema)} in the framing of an experience")
    check_version(header, schema, ExperienceGroup.VERSION)


def _views(value: bytes, table: Any, base: int, size: int) -> dict[str, NDArray[Any]]:
    """The arrays that the header's table describes, over the binary at ``base``."""
    if type(table) is not dict:
        raise DecodeError("wrong_type", f"experience: buffers = {shown(table)} is not a map")
    views = {}
    for name, dtype_name, dtype, itemsize, width in _TABLE:
        entry = table[name]
        if type(entry) is not list or len(entry) < 4:
            raise _bad_buffer(name, entry, "is not [dtype, shape, offset, nbytes]")
        if entry[0] != dtype_name:
            raise _bad_buffer(name, entry, f"must have dtype {dtype_name}")
        offset, nbytes = entry[2], entry[3]
        if type(offset) is not int or type(nbytes) is not int or offset < 0 or nbytes < 0:
            raise _bad_buffer(name, entry, "must have an offset and nbytes of 0 or more")
        if offset % _ALIGNMENT:
            raise _bad_buffer(name, entry, f"must have an offset divisible by {_ALIGNMENT}")
        if offset + nbytes > size:
            raise _bad_buffer(name, entry, f"must lie within the {size} bytes of the binary")
        count = nbytes // itemsize
        rows = count // width if width else count
        if entry[1] != ([rows, width] if width else [rows]) or rows * (width or 1) * itemsize != nbytes:
            raise _bad_buffer(name, entry, "must have the shape that its nbytes hold")
        view = np.frombuffer(value, dtype, count, base + offset)
        views[name] = view.reshape(rows, width) if width else view
    return views


def _bad_buffer(name: str, entry: object, rule: str) -> DecodeError:
    return DecodeError("bad_buffer", f"experience: buffers.{name} = {shown(entry)} {rule}")
