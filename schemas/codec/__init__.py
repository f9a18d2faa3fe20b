"""Records to bytes and back: the only way between the log and the types.

A plain record is one msgpack map (``plain``); an experience group is an array of a header and one binary (``columns``);
tasks and commands may also be JSON objects. The first byte tells the three apart, so nothing depends on headers.
Whatever the bytes, ``decode`` returns a valid record or raises ``DecodeError``.
"""

from collections.abc import Mapping
from functools import lru_cache

from schemas.codec.columns import decode_group, encode_group
from schemas.codec.plain import decode_plain, encode_plain
from schemas.errors import DecodeError, EncodeError, SchemaError, UnsupportedVersion
from schemas.experience import ExperienceGroup
from schemas.record import Record
from schemas.topics import TOPICS

__all__ = ["RECORDS", "DecodeError", "EncodeError", "SchemaError", "UnsupportedVersion", "decode", "encode"]

# every type that travels on a topic by itself
RECORDS: tuple[type[Record | ExperienceGroup], ...] = tuple(
    dict.fromkeys(cls for topic in TOPICS for cls in topic.records)
)
_KNOWN: Mapping[str, type] = {cls.SCHEMA: cls for cls in RECORDS}
_ARRAY_STARTS = frozenset([*range(0x90, 0xA0), 0xDC, 0xDD])


def encode(record: Record | ExperienceGroup) -> bytes:
    """``record`` as msgpack. EncodeError: a reader would refuse it."""
    if isinstance(record, ExperienceGroup):
        return encode_group(record)
    return encode_plain(record)


def decode[R](value: bytes, *expect: type[R]) -> R:
    """Return the record in ``value``, of an expected type of ``RECORDS``. DecodeError: it is nothing of the kind."""
    # A group's arrays are views into it.
    plain, groups, limit = _expected(expect)
    if not value:
        raise DecodeError("truncated", "no bytes at all")
    if len(value) > limit:
        raise DecodeError("too_large", f"{len(value)} bytes, the limit here is {limit}")
    if value[0] in _ARRAY_STARTS:
        if not groups:
            raise DecodeError("bad_framing", f"an array, where a map was expected: {', '.join(sorted(plain))}")
        return decode_group(value)  # type: ignore[return-value]  # groups says that R has ExperienceGroup
    return decode_plain(value, plain, known=_KNOWN)  # type: ignore[return-value]  # one of plain, so an R


@lru_cache
def _expected(expect: tuple[type, ...]) -> tuple[dict[str, type[Record]], bool, int]:
    # The plain types by schema name, whether groups are expected, and the largest size limit.
    types = [cls for cls in RECORDS if cls in expect]
    if not expect or len(types) != len(set(expect)):
        raise TypeError(f"expect = {expect} must name types that travel by themselves: {', '.join(sorted(_KNOWN))}")
    plain = {cls.SCHEMA: cls for cls in types if issubclass(cls, Record)}
    return plain, ExperienceGroup in types, max(cls.MAX_BYTES for cls in types)
