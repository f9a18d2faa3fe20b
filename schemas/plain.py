"""Plain records: one msgpack map each, validated by their pydantic type. Some may be JSON objects (``Record.JSON``).

Nothing is allocated on the word of the input. The map is first walked without building it, so that every declared
length is known to be backed by bytes; then the number of containers is limited while it is built. What is built is
validated strictly: a value of another kind is refused, never converted.
"""

from collections.abc import Mapping
from typing import Any

import msgpack
from pydantic import ValidationError
from pydantic_core import from_json

from schemas.errors import DecodeError, EncodeError, UnsupportedVersion, shown
from schemas.free_form import MAX_CONTAINERS, MAX_ITEMS
from schemas.record import Record

_MAP_STARTS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
_JSON_STARTS = frozenset(b"{ \t\r\n")
"""In msgpack all of these are small integers, which no record is: the first byte tells the two formats apart."""


class ContainerBudget:
    """Counts maps and arrays as they are built; a hook of the unpacker."""

    def __init__(self) -> None:
        self.left = MAX_CONTAINERS

    def take(self, container: Any) -> Any:
        """``container``, as long as the budget lasts."""
        self.left -= 1
        if self.left < 0:
            raise DecodeError("too_large", f"more than {MAX_CONTAINERS} maps and arrays in one record")
        return container


def _refuse_extension(code: int, _data: bytes) -> Any:
    """Hook of the unpacker: no record uses msgpack extension types."""
    raise DecodeError("wrong_type", f"msgpack extension type {code}: records have no extension types")


def is_json(value: bytes) -> bool:
    """Whether ``value`` can only be JSON."""
    return value[0] in _JSON_STARTS


def encode_plain(record: Record) -> bytes:
    """``record`` as one msgpack map.

    Raises:
        EncodeError: A value that msgpack cannot hold, or a record over its size limit.
    """
    try:
        value: bytes = msgpack.packb(record.to_wire())
    except (TypeError, ValueError, OverflowError) as error:
        raise EncodeError(f"{record.SCHEMA}: {error}") from error
    if len(value) > record.MAX_BYTES:
        raise EncodeError(f"{record.SCHEMA}: {len(value)} bytes, the limit is {record.MAX_BYTES}")
    return value


def decode_plain(value: bytes, types: Mapping[str, type[Record]], *, known: Mapping[str, type]) -> Record:
    """The record in ``value``.

    Args:
        value: A msgpack map, or a JSON object where ``types`` has such that may be one. Where it has one such, a JSON
            object need not name its schema.
        types: The expected types by schema name.
        known: All types by schema name, to tell a stray record from an unknown one.

    Raises:
        DecodeError: ``value`` is anything else.
    """
    if is_json(value):
        types = {schema: cls for schema, cls in types.items() if cls.JSON}
        if not types:
            raise DecodeError("unexpected_json", "JSON is accepted for tasks and commands only")
        data = _json_object(value)
        if len(types) == 1:
            data.setdefault("schema", next(iter(types)))
        if (cls := types.get(str(data.get("schema")))) is not None:
            data.setdefault("schema_version", cls.VERSION)
    elif value[0] in _MAP_STARTS:
        data = _msgpack_map(value)
    else:
        raise DecodeError("not_msgpack_or_json", f"no msgpack map and no JSON object, starts with {shown(value[:16])}")
    return _validated(_record_type(data, types, known), data, size=len(value))


def _names(types: Mapping[str, type]) -> str:
    return ", ".join(sorted(types)) or "no plain record"


def _json_object(value: bytes) -> dict[str, Any]:
    # Counted in the text, before anything is built; brackets inside strings count too, which no real task feels.
    if value.count(b"{") + value.count(b"[") > MAX_CONTAINERS:
        raise DecodeError("too_large", f"more than {MAX_CONTAINERS} objects and arrays in one record")
    try:
        data = from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise DecodeError("not_msgpack_or_json", f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise DecodeError("not_msgpack_or_json", f"a record is a JSON object, got {shown(data)}")
    return data


def _msgpack_map(value: bytes) -> dict[str, Any]:
    size = len(value)
    walker = msgpack.Unpacker(read_size=size, max_buffer_size=size)
    walker.feed(value)
    # Each container takes a byte at least, so a small record cannot have too many: counting them costs as much as
    # building them.
    count = ContainerBudget().take if size > MAX_CONTAINERS else None
    try:
        walker.skip()
        if walker.tell() != size:
            raise DecodeError("trailing_bytes", f"{size - walker.tell()} bytes after the record")
        data: dict[str, Any] = msgpack.unpackb(
            value,
            object_hook=count,
            list_hook=count,
            ext_hook=_refuse_extension,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
        )
    except (msgpack.OutOfData, msgpack.FormatError, msgpack.StackError, ValueError) as error:
        raise _unpack_error(error, value) from error
    return data


def _unpack_error(error: Exception, value: bytes) -> DecodeError:
    """What the unpacker's complaint means."""
    match error:
        case msgpack.OutOfData():
            return DecodeError("truncated", f"the msgpack ends within a value, after {len(value)} bytes")
        case msgpack.FormatError():
            return DecodeError("not_msgpack_or_json", f"neither msgpack nor JSON, starts with {shown(value[:16])}")
        case msgpack.StackError():
            return DecodeError("too_deep", "nested deeper than any record")
        case UnicodeDecodeError():
            return DecodeError("bad_text", f"a string that is not UTF-8: {error}")
        case _:
            return DecodeError("too_large", str(error))


def _record_type(data: Mapping[str, Any], types: Mapping[str, type[Record]], known: Mapping[str, type]) -> type[Record]:
    schema = _schema_of(data)
    cls = types.get(schema)
    if cls is None:
        if schema in known:
            raise DecodeError("unexpected_schema", f"schema = {shown(schema)}, expected {_names(types)}")
        raise DecodeError("unknown_schema", f"schema = {shown(schema)}, known are {_names(known)}")
    _check_version(data, schema, cls.VERSION)
    return cls


def _schema_of(data: Mapping[str, Any]) -> str:
    """The schema name in a wire map."""
    schema = data.get("schema")
    if schema is None:
        raise DecodeError("missing_field", "schema is missing")
    if not isinstance(schema, str):
        raise DecodeError("wrong_type", f"schema = {shown(schema)} is not a string")
    return schema


def _check_version(data: Mapping[str, Any], schema: str, known: int) -> None:
    """Refuse major versions other than ``known``."""
    version = data.get("schema_version")
    if version is None:
        raise DecodeError("missing_field", f"{schema}: schema_version is missing")
    if type(version) is not int:
        raise DecodeError("wrong_type", f"{schema}: schema_version = {shown(version)} is not an integer")
    if version != known:
        raise UnsupportedVersion(schema, version, known)


def _validated(cls: type[Record], data: dict[str, Any], *, size: int) -> Record:
    if size > cls.MAX_BYTES:
        raise DecodeError("too_large", f"{cls.SCHEMA}: {size} bytes, the limit is {cls.MAX_BYTES}")
    try:
        record = cls.model_validate(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    else:
        _refuse_if_grown(record, size)
        return record
    field = ".".join(map(str, first["loc"])) or "record"
    if first["type"] == "missing":
        raise DecodeError("missing_field", f"{cls.SCHEMA}: {field} is missing")
    reason = "wrong_type" if first["type"].endswith("_type") else "bad_value"
    raise DecodeError(reason, f"{cls.SCHEMA}: {field} = {shown(first['input'])}: {first['msg']}")


def _refuse_if_grown(record: Record, size: int) -> None:
    # What was read gets written again, inside a dispatch for one, and can then be longer than it came: at most 9/4
    # times, "1.0," in JSON being a nine-byte float in msgpack. So only large records need the test.
    if 3 * size > record.MAX_BYTES:
        try:
            encode_plain(record)
        except EncodeError as error:
            raise DecodeError("too_large", f"written as msgpack again: {error}") from error
