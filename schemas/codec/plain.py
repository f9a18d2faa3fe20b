"""Plain records: one msgpack map each, validated by their pydantic type. Some may be JSON objects (``Record.JSON``).

Nothing is allocated on the word of the input: msgspec takes no declared length for true that is not backed by bytes.
But a byte can be an empty list, which takes ninety. So what is larger than ``SMALL`` is not built as a whole:

::

    bytes --skip--> its fields, each still bytes; unknown ones are passed over
                      |--lists of items: straight into their structs, a few times the size of their bytes
                      '--the rest: estimated (schemas.fields.memory_estimate), then built, then validated

What is built is validated strictly: a value of another kind is refused, never converted.

So any record up to its limit is decoded within 100 ms, in at most ten times its size, or 5 MiB where that is more.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Annotated, Any, get_args, get_origin

import msgspec
from annotated_types import MaxLen
from msgspec import Meta, Raw, Struct
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from schemas.errors import DecodeError, EncodeError, UnsupportedVersion, parser_reason, shown
from schemas.fields.free_form import MAX_ITEMS
from schemas.fields.items import Item
from schemas.fields.memory_estimate import SMALL, MemoryEstimate, estimate_json, estimate_msgpack
from schemas.record import Metrics, Record, fault

_MAP_STARTS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
# in msgpack all of these are small integers, which no record is: the first byte tells the two formats apart
_JSON_STARTS = frozenset(b"{ \t\r\n")

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)


_ABSENT = Raw()
# what numbers and defaults may add to a record without metrics: two words for each of a task's tool calls, say
_ROOM = 1 << 16


class _Name(Struct, gc=False):
    # What a large record says of its kind.
    schema: Raw = _ABSENT
    schema_version: Raw = _ABSENT


class _Format:
    def __init__(self, module: Any, estimate: Callable[[bytes, MemoryEstimate], None]) -> None:
        self._module = module
        self.estimate = estimate
        self.map = module.Decoder(dict[str, Any]).decode
        self.value = module.Decoder().decode
        self.name = module.Decoder(_Name).decode

    @lru_cache  # noqa: B019 - two formats, for good
    def fields(self, cls: type[Record]) -> tuple[Callable[[bytes], Any], dict[str, Callable[[Raw], Any]]]:
        # How the fields of a large record are told apart, and how lists of items are read.
        names = cls.model_fields
        raw = msgspec.defstruct(f"Raw{cls.__name__}", [(name, Raw, _ABSENT) for name in names], gc=False)
        lists = {name: self._module.Decoder(kind).decode for name, kind in _kinds(cls).items()}
        return self._module.Decoder(raw).decode, lists


_MSGPACK = _Format(msgspec.msgpack, estimate_msgpack)
_JSON = _Format(msgspec.json, estimate_json)


@lru_cache
def _kinds(cls: type[Record]) -> dict[str, Any]:
    # The types of a record's lists of items, with their limits in msgspec's words.
    return {
        name: Annotated[field.annotation, Meta(max_length=_most(field))]
        for name, field in cls.model_fields.items()
        if get_origin(field.annotation) is list
        and isinstance(kind := get_args(field.annotation)[0], type)
        and issubclass(kind, Item)
    }


def _most(field: FieldInfo) -> int:
    return min([limit.max_length for limit in field.metadata if isinstance(limit, MaxLen)], default=MAX_ITEMS)


def _exactly_plain(value: object) -> object:
    # Hook of the encoder, for records inside others, and values of types that derive from plain ones, as NumPy's
    # float64.
    if isinstance(value, Record):
        return value.given()
    kinds: tuple[type[Any], ...] = (str, float, int, dict, list)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{shown(value)} is a {type(value).__name__}, not plain data")


_encode = msgspec.msgpack.Encoder(enc_hook=_exactly_plain).encode


def is_json(value: bytes) -> bool:
    """Whether ``value`` can only be JSON."""
    return value[0] in _JSON_STARTS


def encode_plain(record: Record) -> bytes:
    """``record`` as one msgpack map. Raises EncodeError."""
    value = _written(record)
    if len(value) > SMALL:
        try:
            _large(value, _MSGPACK, type(record))
        except DecodeError as error:
            raise EncodeError(f"{record.SCHEMA}: {error.detail}") from error
    return value


def _written(record: Record) -> bytes:
    try:
        # Items and records inside are as they are.
        value = _encode({"schema": record.SCHEMA, "schema_version": record.VERSION, **record.given()})
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(f"{record.SCHEMA}: {error}") from error
    if len(value) > record.MAX_BYTES:
        raise EncodeError(f"{record.SCHEMA}: {len(value)} bytes, the limit is {record.MAX_BYTES}")
    return value


def decode_plain(value: bytes, types: Mapping[str, type[Record]], *, known: Mapping[str, type]) -> Record:
    """Return the record in ``value``, a msgpack map, or a JSON object where ``types`` has such that may be one.

    Where it has one such, a JSON object need not name its schema. ``types``: the expected ones by schema name;
    ``known``: all, to tell a stray record from an unknown one. DecodeError: ``value`` is anything else.
    """
    if is_json(value):
        types = {schema: cls for schema, cls in types.items() if cls.JSON}
        if not types:
            raise DecodeError("unexpected_json", "JSON is accepted for tasks, commands and examples only")
        form = _JSON
    elif value[0] in _MAP_STARTS:
        form = _MSGPACK
    else:
        raise DecodeError("not_msgpack_or_json", f"no msgpack map and no JSON object, starts with {shown(value[:16])}")
    try:
        return _decoded(value, form, types, known)
    except DecodeError:
        raise
    except _UNREADABLE as error:
        raise _unreadable(error, value, form) from error


def _decoded(value: bytes, form: _Format, types: Mapping[str, type[Record]], known: Mapping[str, type]) -> Record:
    if len(value) <= SMALL:
        data = form.map(value)
        cls = _record_type(data, form, types, known)
        # All of a list at once: pydantic would ask for each.
        for name, kind in _kinds(cls).items():
            if name in data:
                data[name] = _items(cls, name, partial(msgspec.convert, type=kind), data[name])
        return _validated(cls, data, size=len(value))
    name = form.name(value)
    told = {"schema": name.schema, "schema_version": name.schema_version}
    cls = _record_type({key: _short(raw, form) for key, raw in told.items() if raw is not _ABSENT}, form, types, known)
    if len(value) > cls.MAX_BYTES:
        raise DecodeError("too_large", f"{cls.SCHEMA}: {len(value)} bytes, the limit is {cls.MAX_BYTES}")
    data = _large(value, form, cls)
    return _validated(cls, data, size=_as_msgpack(cls, data) if form is _JSON else len(value))


def _short(raw: Raw, form: _Format) -> Any:
    # A schema's name or version; whatever is too long to be one is cut.
    return form.value(raw) if len(memoryview(raw)) <= SMALL else "..."


def _large(value: bytes, form: _Format, cls: type[Record]) -> dict[str, Any]:
    # The fields of a record that is to be built with care.
    split, lists = form.fields(cls)
    raws = split(value)
    data: dict[str, Any] = {}
    rest: list[tuple[str, Raw]] = []
    for name in raws.__struct_fields__:
        raw = getattr(raws, name)
        if raw is _ABSENT:
            continue
        if name in lists:
            data[name] = _items(cls, name, lists[name], raw)
        else:
            rest.append((name, raw))
    estimate = MemoryEstimate(len(value), carries=cls.CARRIES)
    for name, raw in rest:
        annotation: Any = cls.model_fields[name].annotation
        estimate.copies = 2 if annotation is Metrics or Metrics in get_args(annotation) else 1
        form.estimate(bytes(raw), estimate)
    for name, raw in rest:
        data[name] = form.value(raw)
    return data


def _items(cls: type[Record], name: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except msgspec.ValidationError as error:
        text = str(error)
        reason = "missing_field" if "missing required" in text else "bad_value"
        raise DecodeError(reason, f"{cls.SCHEMA}: {name}: {text}") from error


def _unreadable(error: Exception, value: bytes, form: _Format) -> DecodeError:
    if form is _JSON:
        return DecodeError("not_msgpack_or_json", f"not JSON: {error}")
    reason = "wrong_type" if isinstance(error, msgspec.ValidationError) else parser_reason(error)
    return DecodeError(reason, f"{error}, in what starts with {shown(value[:16])}")


def _names(types: Mapping[str, type]) -> str:
    return ", ".join(sorted(types)) or "no plain record"


def _record_type(
    data: dict[str, Any], form: _Format, types: Mapping[str, type[Record]], known: Mapping[str, type]
) -> type[Record]:
    if form is _JSON:
        if len(types) == 1:
            data.setdefault("schema", next(iter(types)))
        if (cls := types.get(str(data.get("schema")))) is not None:
            data.setdefault("schema_version", cls.VERSION)
    schema = _schema_of(data)
    cls = types.get(schema)
    if cls is None:
        if schema in known:
            raise DecodeError("unexpected_schema", f"schema = {shown(schema)}, expected {_names(types)}")
        raise DecodeError("unknown_schema", f"schema = {shown(schema)}, known are {_names(known)}")
    _check_version(data, schema, cls.VERSION)
    return cls


def _schema_of(data: Mapping[str, Any]) -> str:
    schema = data.get("schema")
    if schema is None:
        raise DecodeError("missing_field", "schema is missing")
    if not isinstance(schema, str):
        raise DecodeError("wrong_type", f"schema = {shown(schema)} is not a string")
    return schema


def _check_version(data: Mapping[str, Any], schema: str, known: int) -> None:
    version = data.get("schema_version")
    if version is None:
        raise DecodeError("missing_field", f"{schema}: schema_version is missing")
    if type(version) is not int:
        raise DecodeError("wrong_type", f"{schema}: schema_version = {shown(version)} is not an integer")
    if version != known:
        raise UnsupportedVersion(schema, version, known)


def _validated(cls: type[Record], data: dict[str, Any], *, size: int) -> Record:
    try:
        record = cls.model_validate(data, strict=True)
    except ValidationError as error:
        reason, detail = fault(cls, error, data)
        raise DecodeError(reason, f"{cls.SCHEMA}: {detail}") from error
    _refuse_if_grown(record, size)
    return record


def _refuse_if_grown(record: Record, size: int) -> None:
    # What is written again, inside a dispatch for one, can then be longer than it came: an integer where a float may
    # stand grows by eight bytes, and what was left out may have a default.
    if size > SMALL and record.SENT_ON and size + _ROOM + 8 * len(getattr(record, "metrics", ())) > record.MAX_BYTES:
        # Its shape was looked at when it was read: to build it once more would take its memory a second time.
        try:
            _written(record)
        except EncodeError as error:
            raise DecodeError("too_large", f"written as msgpack again: {error}") from error


def _as_msgpack(cls: type[Record], data: dict[str, Any]) -> int:
    # How long the fields of a large JSON object are in msgpack, in which they must not be too much either.
    try:
        value = _encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DecodeError("bad_value", f"{cls.SCHEMA}: nothing that msgpack can hold: {error}") from error
    if len(value) > cls.MAX_BYTES:
        raise DecodeError("too_large", f"{cls.SCHEMA}: {len(value)} bytes as msgpack, the limit is {cls.MAX_BYTES}")
    estimate_msgpack(value, MemoryEstimate(len(value), carries=cls.CARRIES))
    return len(value)
