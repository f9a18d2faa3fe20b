"""Experience groups on the wire: a msgpack array of a header map and one binary that holds every buffer.

The header's ``buffers`` map says where in the binary each column lies: ``{name: [dtype, shape, offset, nbytes]}``.
Offsets are multiples of 8, and the header is padded so that the binary itself starts at a multiple of 8 of the message.
Encoding is one ``join``, the only copy; decoding lays read-only views over the message, which lives as long as any of
them.

This is the way of every token, so neither direction goes through pydantic: msgspec checks the header against the types
below while it parses, skips what they do not name without building it, and hands out the binary uncopied.
"""

from collections.abc import Callable
from math import prod
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.msgpack import Decoder, Encoder
from numpy.typing import NDArray

from schemas.errors import DecodeError, EncodeError, UnsupportedVersion, parser_reason, shown
from schemas.experience import MAX_METRICS, MAX_SAMPLES, ExperienceGroup, present
from schemas.fields.memory_estimate import SMALL, MemoryEstimate, estimate_msgpack
from schemas.groups.column import COLUMNS, MAX_ROUTED_EXPERTS, MAX_ROUTED_LAYERS, OPTIONAL_COLUMNS, Column
from schemas.groups.group_rules import check_group, check_types
from schemas.groups.vectors import FLOAT32, INT32, UINT8
from schemas.record import MAX_COUNT, BatchType, Metrics

MAX_HEADER_BYTES = 4 << 20

_ALIGNMENT = 8
_ARRAY_OF_TWO = b"\x92"
_BIN32 = b"\xc6"
_BIN32_HEAD = 5
_ZEROS = tuple(bytes(n) for n in range(_ALIGNMENT))
_EMPTY_STRING = 0xA0
_PADDING = tuple(bytes([_EMPTY_STRING + n]) + b" " * n for n in range(_ALIGNMENT))

type _Size = Annotated[int, Meta(ge=0)]
type _Offset = Annotated[int, Meta(ge=0, multiple_of=_ALIGNMENT)]
type _Ints = tuple[Literal["<i4"], tuple[_Size], _Offset, _Size]
type _Floats = tuple[Literal["<f4"], tuple[_Size], _Offset, _Size]
type _Bytes = tuple[Literal["|u1"], tuple[_Size], _Offset, _Size]
type _Triples = tuple[Literal["<i4"], tuple[_Size, Literal[3]], _Offset, _Size]
type _Pairs = tuple[Literal["<i4"], tuple[_Size, Literal[2]], _Offset, _Size]
type _Quadruples = tuple[Literal["<f4"], tuple[_Size, Literal[4]], _Offset, _Size]
type _Layers = Annotated[int, Meta(ge=1, le=MAX_ROUTED_LAYERS)]
type _Chosen = Annotated[int, Meta(ge=1, le=MAX_ROUTED_EXPERTS)]
type _Routes = tuple[Literal["|u1"], tuple[_Size, _Layers, _Chosen], _Offset, _Size]


class GroupBuffers(Struct, gc=False):
    """Where the columns lie: of each its dtype, shape, offset and nbytes. Those that need not be there are last."""

    tokens: _Ints
    lengths: _Ints
    prompt_lengths: _Ints
    logprobs: _Floats
    mask_bits: _Bytes
    rewards: _Floats
    run_ids: _Ints
    versions: _Triples
    turn_starts: _Pairs | UnsetType = UNSET
    turn_rewards: _Floats | UnsetType = UNSET
    sampling: _Quadruples | UnsetType = UNSET
    teacher_logprobs: _Floats | UnsetType = UNSET
    routes: _Routes | UnsetType = UNSET
    kept_sizes: _Ints | UnsetType = UNSET
    kept: _Bytes | UnsetType = UNSET

    @property
    def is_plain(self) -> bool:
        # Whether none of the optional columns is there.
        return (
            self.turn_starts is UNSET
            and self.turn_rewards is UNSET
            and self.sampling is UNSET
            and self.teacher_logprobs is UNSET
            and self.routes is UNSET
            and self.kept_sizes is UNSET
            and self.kept is UNSET
        )


# Unpacked once: attribute look-ups would cost a tenth of the time of a decode.
type _Row = tuple[str, str, np.dtype[Any], tuple[int, ...], int]


def _row(column: Column, sizes: tuple[int, ...] = ()) -> _Row:
    # ``sizes`` are what the words in the column's tail stand for.
    tail = tuple(size for size in column.tail if isinstance(size, int)) or sizes
    return column.name, column.dtype_name, column.dtype, tail, column.dtype.itemsize * prod(tail)


_TABLE: tuple[_Row, ...] = tuple(map(_row, COLUMNS))
_OPTIONAL_ROWS = {column.name: _row(column) for column in OPTIONAL_COLUMNS if column.name != "routes"}
_columns = attrgetter(*(column.name for column in COLUMNS))
_optional_entries = attrgetter(*(column.name for column in OPTIONAL_COLUMNS))


class _Name(Struct, gc=False):
    # Read first where the rest cannot be read.
    schema: str
    schema_version: int


type _AllMetrics = Annotated[list[Annotated[Metrics, Meta(max_length=MAX_METRICS)]], Meta(max_length=MAX_SAMPLES)]


class GroupHeader(_Name, gc=False):
    """The header of a group, as it is on the wire. ``padding`` is last: its length is settled after all else."""

    schema: Literal["experience"]
    schema_version: Literal[1]
    task_id: str
    attempt: Annotated[int, Meta(ge=1, le=MAX_COUNT)]
    batch_id: str
    batch_type: BatchType
    workflow: str
    model: str
    explorer: str
    incarnation: str
    buffers: GroupBuffers
    metrics: _AllMetrics = []
    finish_reasons: Annotated[list[str], Meta(max_length=MAX_SAMPLES)] = []
    padding: str = ""


# What it has of a group before its buffers.
_identity = attrgetter(*GroupHeader.__struct_fields__[2 : GroupHeader.__struct_fields__.index("buffers")])


class LargeHeader(GroupHeader, gc=False):
    # The header of a message that is not small, of whose metrics nothing is built yet.
    metrics: msgspec.Raw = msgspec.Raw(b"\x90")  # type: ignore[assignment]  # the same, still bytes


_encode_header = Encoder().encode
_decode_message = Decoder(tuple[GroupHeader, memoryview]).decode
_decode_large = Decoder(tuple[LargeHeader, memoryview]).decode
_decode_metrics: Callable[[msgspec.Raw], list[Metrics]] = Decoder(_AllMetrics).decode
_decode_name = Decoder(tuple[_Name, msgspec.Raw]).decode


def encode_group(group: ExperienceGroup) -> bytes:
    """``group`` as bytes, copying its buffers once."""
    table: list[Any] = []
    parts: list[Any] = [_ARRAY_OF_TWO, b"", b"", b""]
    offset = 0
    plain = group.is_plain
    rows, columns = (_TABLE, _columns(group)) if plain else _with_optional(group)
    for (name, dtype_name, dtype, tail, row_bytes), array in zip(rows, columns, strict=True):
        shape = array.shape
        if array.dtype != dtype or not shape or shape[1:] != tail:
            wanted = f"{dtype} with shape {['n', *tail]}"
            raise EncodeError(f"experience: {name} is {array.dtype} with shape {list(shape)}, not {wanted}")
        nbytes = shape[0] * row_bytes
        table.append((dtype_name, shape, offset, nbytes))
        if nbytes:
            parts.append(array)
        gap = -nbytes % _ALIGNMENT
        if gap:
            parts.append(_ZEROS[gap])
        offset += nbytes + gap
    try:
        check_types(group)
        check_group(group, plain=plain)
    except DecodeError as error:
        raise EncodeError(error.detail) from error
    optional = {row[0]: entry for row, entry in zip(rows[len(_TABLE) :], table[len(_TABLE) :], strict=True)}
    header = _packed_header(group, GroupBuffers(*table[: len(_TABLE)], **optional))
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


def _with_optional(group: ExperienceGroup) -> tuple[list[_Row], list[NDArray[Any]]]:
    # Raises EncodeError where a column has another number of dimensions, or too many layers or experts.
    rows, columns = list(_TABLE), list(_columns(group))
    for column, array in present(group):
        rows.append(_OPTIONAL_ROWS.get(column.name) or _routes_row(column, array))
        columns.append(array)
    return rows, columns


def _routes_row(column: Column, routes: NDArray[Any]) -> _Row:
    sizes = routes.shape[1:]
    if not (len(sizes) == 2 and 1 <= sizes[0] <= MAX_ROUTED_LAYERS and 1 <= sizes[1] <= MAX_ROUTED_EXPERTS):
        raise EncodeError(f"experience: routes has shape {list(routes.shape)}, not [n, layers, k] within the limits")
    return _row(column, sizes)


def _packed_header(group: ExperienceGroup, buffers: GroupBuffers) -> bytes:
    # The last byte is the empty string of the padding.
    header = GroupHeader(*("experience", 1, *_identity(group), buffers, group.metrics, group.finish_reasons))
    try:
        return _encode_header(header)
    except (TypeError, ValueError, OverflowError) as error:
        raise EncodeError(f"experience: {error}") from error


def decode_group(value: bytes) -> ExperienceGroup:
    """Return the group in ``value``, whose size the caller has limited; its arrays are read-only views into it."""
    try:
        if len(value) <= SMALL:
            header, binary = _decode_message(value)
            metrics = header.metrics
        else:
            header, binary = _decode_large(value)
            metrics = _metrics_of(header.metrics, len(value) - len(binary), len(value))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(value, error) from error
    size = len(binary)
    base = len(value) - size
    if base > MAX_HEADER_BYTES:
        raise DecodeError("too_large", f"experience: a header of more than {MAX_HEADER_BYTES} bytes")
    # Slicing one array takes a third of the time of making another over the bytes.
    octets = np.frombuffer(value, UINT8, size, base)
    words = octets[: size & ~3].view(INT32)
    floats = words.view(FLOAT32)
    buffers = header.buffers
    plain = buffers.is_plain
    group = ExperienceGroup(
        task_id=header.task_id,
        attempt=header.attempt,
        batch_id=header.batch_id,
        batch_type=header.batch_type,
        workflow=header.workflow,
        model=header.model,
        explorer=header.explorer,
        incarnation=header.incarnation,
        tokens=_cut(words, 4, "tokens", buffers.tokens, size),
        lengths=_cut(words, 4, "lengths", buffers.lengths, size),
        prompt_lengths=_cut(words, 4, "prompt_lengths", buffers.prompt_lengths, size),
        logprobs=_cut(floats, 4, "logprobs", buffers.logprobs, size),
        mask_bits=_cut(octets, 1, "mask_bits", buffers.mask_bits, size, 0),
        rewards=_cut(floats, 4, "rewards", buffers.rewards, size),
        run_ids=_cut(words, 4, "run_ids", buffers.run_ids, size),
        versions=_cut(words, 12, "versions", buffers.versions, size).reshape(-1, 3),
        metrics=metrics,
        finish_reasons=header.finish_reasons,
        **({} if plain else _cut_optional(octets, _optional_entries(buffers), size)),
    )
    check_group(group, plain=plain)
    return group


def _cut_optional(octets: NDArray[Any], entries: tuple[Any, ...], size: int) -> dict[str, NDArray[Any]]:
    found = {}
    for column, entry in zip(OPTIONAL_COLUMNS, entries, strict=True):
        if entry is not UNSET:
            row_bytes = column.dtype.itemsize * prod(entry[1][1:])
            cut = _cut(octets, row_bytes, column.name, entry, size, 0)
            found[column.name] = cut.view(column.dtype).reshape(entry[1])
    return found


def _metrics_of(raw: msgspec.Raw, header_bytes: int, size: int) -> list[Metrics]:
    # Estimated before they are built where the header of a message of ``size`` bytes is not small.
    if header_bytes > SMALL:
        estimate_msgpack(bytes(raw), MemoryEstimate(size, share=4))
    try:
        return _decode_metrics(raw)
    except msgspec.ValidationError as error:
        # Named as in the message that they are a part of.
        text = str(error)
        path = text.replace("`$", "`$[0].metrics") if "`$" in text else f"{text} - at `$[0].metrics`"
        raise msgspec.ValidationError(path) from error


def _unreadable(value: bytes, error: Exception) -> DecodeError:
    # A header of another kind or version is that before it is anything else.
    try:
        _refuse_schema(_decode_name(value)[0])
    except DecodeError as other:
        return other
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # not even that can be read: the first error says why
    text = str(error)
    return DecodeError(_reason(error, text), f"experience: {text}")


def _reason(error: Exception, text: str) -> str:
    match error:
        case msgspec.ValidationError() if "missing required field" in text:
            reason = "missing_field"
        case msgspec.ValidationError() if "$[0].buffers" in text:
            reason = "bad_buffer"
        case msgspec.ValidationError() if "$[0]" not in text or text.endswith("`$[0]`"):
            reason = "bad_framing"
        case msgspec.ValidationError() if "Invalid enum value" in text or ">=" in text:
            reason = "bad_value"
        case msgspec.ValidationError():
            reason = "too_large" if "length <=" in text else "wrong_type"
        case _:
            reason = parser_reason(error)
    return reason


def _refuse_schema(header: _Name) -> None:
    if header.schema != ExperienceGroup.SCHEMA:
        raise DecodeError("unexpected_schema", f"schema = {shown(header.schema)} in the framing of an experience")
    if header.schema_version != ExperienceGroup.VERSION:
        raise UnsupportedVersion(header.schema, header.schema_version, ExperienceGroup.VERSION)


def _cut(  # noqa: PLR0917 - keywords would cost a tenth of its time
    flat: NDArray[Any], row_bytes: int, name: str, entry: tuple[Any, ...], size: int, shift: int = 2
) -> NDArray[Any]:
    # ``flat``: the whole binary, of ``size`` bytes, as numbers of ``1 << shift`` bytes; ``entry``: what the table of
    # buffers says.
    _, shape, offset, nbytes = entry
    end = offset + nbytes
    if shape[0] * row_bytes != nbytes or end > size:
        rule = f"must have a shape that fits its nbytes, within the {size} bytes of the binary"
        raise DecodeError("bad_buffer", f"experience: buffers.{name} = {shown(list(entry))} {rule}")
    return flat[offset >> shift : end >> shift]
