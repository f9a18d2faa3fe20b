"""Values of the coordinator's state as bytes, and back: what lies in its changelog.

An entry is a msgpack array ``[FRAMING, body]``. A body is a :class:`Value`, a list of such, or plain data. Records of
``schemas`` inside a value are bytes of the record codec and follow its rules.

=====================================  =================================================================================
change between two versions            what is done
=====================================  =================================================================================
a new field that may be missing        it comes last and has a default. Where it is missing, the default stands in;
                                       a program that does not know it keeps it, and writes it back with the rest
a new field that the version before    it names the *level* that it came with in ``SINCE``: it is left out until
would stumble over, or misread         ``trinity-bus upgrade finalize`` has raised the level of the state
a new kind of entry                    the same; an entry of an unknown kind stays in the changelog as it is
anything else                          not at all
=====================================  =================================================================================

The *level* is what the state may hold, and is itself part of it: an operator raises it when no program of the version
before is left that might have to read it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct
from msgspec.msgpack import Encoder

from schemas import Record
from schemas.codec import encode
from schemas.codec.plain import decode_plain
from trinity_bus.errors import TrinityError

# Of all entries but ``level``, which is framed by the level itself: whoever does not know that reads nothing.
FRAMING = 1
LEVEL_KEY = "level"
OLDEST_LEVEL = 1
NEWEST_LEVEL = 1

_UNKNOWN = "unknown"


class StateError(TrinityError, ValueError):
    """The coordinator's changelog cannot be read."""


class Value(Struct, dict=True):
    """Base of what is kept. Fields that a newer program has written, and this one does not know, stay with it.

    What is set in ``__post_init__`` is no field: it is not kept, but found again when the state is restored.
    """

    # Fields that the version before cannot read, and the level that they came with.
    SINCE: ClassVar[Mapping[str, int]] = {}

    def but(self, **changes: Any) -> Self:
        other = msgspec.structs.replace(self, **changes)
        if _UNKNOWN in self.__dict__:
            other.__dict__[_UNKNOWN] = self.__dict__[_UNKNOWN]
        return other


class StateCodec:
    def __init__(self) -> None:
        self.level = self.newest = NEWEST_LEVEL
        # Whether some value is not just its fields, so that msgspec cannot write it by itself.
        self._has_unknown = self._leaves_out = False

    def set_level(self, level: int) -> None:
        """Write values at this level from now on; StateError where this program does not know it."""
        if not OLDEST_LEVEL <= level <= self.newest:
            raise StateError(
                f"the coordinator's state has level {level}, this program knows {OLDEST_LEVEL} to {self.newest}; "
                "run the coordinator of the release that wrote it, or start in a new namespace"
            )
        self.level = level
        self._leaves_out = any(since > level for kind in _subclasses(Value) for since in kind.SINCE.values())

    def pack(self, body: Any, framing: int = FRAMING) -> bytes:
        return bytes((0x92, framing)) + self.encode(body)

    def encode(self, value: Any) -> bytes:
        """Return a value that is an item of an entry, whose bytes never change."""
        return _ENCODER.encode(self._written(value) if self._has_unknown or self._leaves_out else value)

    def build[T](self, of: type[T], plain: Any) -> T:
        """Return the value in an unpacked body, with what this program does not know of it, or raise StateError."""
        try:
            value = msgspec.convert(plain, of, dec_hook=_record_of, builtin_types=(bytes,))
        except ValueError as error:
            raise StateError(f"the coordinator's state has something that is no {of}: {error}") from error
        self._has_unknown = _keep_unknown(value, plain) or self._has_unknown
        return value

    def decode[T](self, of: type[T], item: bytes) -> T:
        """Return the inverse of :meth:`encode`, or raise StateError."""
        try:
            return msgspec.msgpack.decode(item, type=of, dec_hook=_record_of)
        except ValueError as error:
            raise StateError(f"the coordinator's state has something that is no {of}: {error}") from error

    def _written(self, value: Any) -> Any:
        # As plain data: without fields that are too new for the level, with those that nobody here knows.
        if isinstance(value, Value):
            unknown = value.__dict__.get(_UNKNOWN)
            written = {
                key: self._written(getattr(value, name))
                for name, key in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
                # What has unknown fields was written by a program that is newer than all that this one knows.
                if unknown or value.SINCE.get(name, 0) <= self.level
            }
            if _is_row(value):
                return [*written.values(), *(unknown or ())]
            return {**written, **(unknown or {})}
        if isinstance(value, list | tuple):
            return [self._written(item) for item in value]
        if isinstance(value, dict):
            return {key: self._written(item) for key, item in value.items()}
        return value


def unpack(key: str, value: bytes) -> Any:
    """Return the body of an entry, as plain data; StateError where it is none, or of an unknown version."""
    try:
        entry = msgspec.msgpack.decode(value)
    except ValueError as error:
        raise StateError(f"entry {key!r} of the coordinator's state is not msgpack: {error}") from error
    if not isinstance(entry, list) or len(entry) != 2:
        raise StateError(f"entry {key!r} of the coordinator's state is not a pair of version and body")
    if entry[0] != FRAMING and key != LEVEL_KEY:
        raise StateError(
            f"entry {key!r} of the coordinator's state has version {entry[0]!r}, this program reads {FRAMING}; "
            "run the coordinator of the release that wrote it, or start in a new namespace"
        )
    return entry[1]


def _keep_unknown(value: Any, plain: Any) -> bool:
    # Keeps with each value below this one what it does not know. Returns whether there is anything.
    found = False
    if isinstance(value, Value):
        names = value.__struct_fields__
        if _is_row(value):
            unknown: Any = plain[len(names) :]
            known = list(zip(names, plain, strict=False))
        else:
            keys = value.__struct_encode_fields__
            unknown = {key: plain[key] for key in plain if key not in keys}
            known = [(name, plain[key]) for name, key in zip(names, keys, strict=True) if key in plain]
        if unknown:
            value.__dict__[_UNKNOWN] = unknown
            found = True
        for name, inner in known:
            if isinstance(inner, list | dict) and _keep_unknown(getattr(value, name), inner):
                found = True
    elif isinstance(value, list | tuple) and isinstance(plain, list):
        for item, inner in zip(value, plain, strict=True):
            if isinstance(inner, list | dict) and _keep_unknown(item, inner):
                found = True
    return found


def _is_row(value: Value) -> bool:
    return value.__struct_config__.array_like


def _subclasses(kind: type[Value]) -> Iterator[type[Value]]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def _plain(record: Any) -> Any:
    if isinstance(record, Record):
        return encode(record)
    raise TypeError(f"{type(record)} is nothing that the coordinator's state may hold")


def _record_of(kind: type[Record], plain: Any) -> Any:
    # Also of records that only ever travel inside others.
    return decode_plain(plain, {kind.SCHEMA: kind}, known={})


_ENCODER = Encoder(enc_hook=_plain)
