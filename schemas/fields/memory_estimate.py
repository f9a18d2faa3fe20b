"""What a message would take once it is built, estimated without building it.

A value of msgpack is a byte or more; as a Python object it takes up to a hundred. The estimate looks at each value, in
constant memory, and stops at the first one too many. Strings are passed over whatever their length, so that it costs as
much as there are values: some 20 ms for the most that may be.
"""

import re

from schemas.errors import DecodeError
from schemas.fields.free_form import MAX_CONTAINERS, MAX_ITEMS, MAX_VALUES

SMALL = 24 << 10  # bytes of a message that needs no estimate: whatever it is, it takes less than ``FREE``
FREE = 9 << 19  # bytes that any message may take
GROWTH = 7  # how many times its size a larger one may take; what this leaves of ten is for the record's own fields

_LIST = 72
_MAP = 96  # bytes of one without entries, like ``_LIST``
_FIRST_ENTRY = 88
_ENTRY = 40  # of a map's entries besides keys and values
_EXTENSION = 0
_NUMBER = 32  # of one that is not small: small integers are shared, and take nothing but their slot
_TEXT = 56  # of a string, without its characters
_SLOT = 8
_WIDEST = 4  # bytes of a character of a long string that has a single emoji, all others being one byte of UTF-8
_WIDE = 2  # the same of a short one, nearly always


class MemoryEstimate:
    """Adds up what one message of ``size`` bytes would take."""

    # ``carries``: whether it holds another record that was estimated before, and may therefore take a little more;
    # ``share``: how many times as many values and containers as others it may have, because less is done with each.

    def __init__(self, size: int, *, carries: bool = False, share: int = 1) -> None:
        self._size, self._share = size, share
        self.copies = 1  # how many of each container there will be: 2 where pydantic makes its own of what it validates
        self.most = max(FREE + (carries << 20), (GROWTH + carries) * size)
        self._bytes = self._values = self._containers = 0

    def add(self, nbytes: int, values: int, containers: int) -> None:
        # Raises DecodeError where it is too much.
        self._bytes += nbytes * self.copies
        self._values += values
        self._containers += containers
        if self._containers > MAX_CONTAINERS * self._share:
            raise DecodeError("too_large", f"more than {MAX_CONTAINERS * self._share} arrays and maps in one record")
        if self._values > MAX_VALUES * self._share:
            raise DecodeError("too_large", f"more than {MAX_VALUES * self._share} values in one record")
        if self._bytes > self.most:
            raise DecodeError(
                "too_large",
                f"{self._size} bytes of so many small values that they would take more than {self.most} in memory; "
                "put them into a string",
            )


def estimate_msgpack(data: bytes, estimate: MemoryEstimate) -> None:
    """Raise DecodeError for what is too much to build."""
    # ``data``: whole values of msgpack, which a parser has passed over before: nothing is cut short.
    at, end, nbytes = 0, len(data), 0
    while at < end:
        code = data[at]
        width = _WIDTHS[code]
        if width:
            at += width
            nbytes += _SIZES[code]
            continue
        kind, mask, argument = _LENGTHS[code]
        at += 1
        count = int.from_bytes(data[at : at + argument], "big") if argument else code & mask
        at += argument
        if kind is None:
            at += count
            nbytes += _TEXT + _WIDEST * count
            continue
        if kind == _EXTENSION:
            raise DecodeError("wrong_type", f"msgpack code {code:#x}: records have no extension types")
        if count > MAX_ITEMS:
            raise DecodeError("too_large", f"{count} entries in one array or map, at most {MAX_ITEMS} are allowed")
        estimate.add(nbytes + _container(kind, count), count << (kind == _MAP), 1)
        nbytes = 0
    estimate.add(nbytes, 1, 0)


def _container(kind: int, count: int) -> int:
    if kind == _LIST:
        return _LIST + _SLOT * count
    return _MAP + (_FIRST_ENTRY + _ENTRY * count if count else 0)


def estimate_json(data: bytes, estimate: MemoryEstimate) -> None:
    """Run the same for JSON."""
    # At least half of all strings' quotes, whatever is escaped: before anything is done for each string.
    if data.count(b'"') - data.count(b'\\"') > 2 * MAX_VALUES:
        raise DecodeError("too_large", f"more than {MAX_VALUES} values in one record")
    nbytes = values = containers = 0
    for sign in _signs(data):
        kind = sign.lastindex
        if kind == _STRING:
            values += 1
            nbytes += _STRING_AT_LEAST + _WIDEST * (sign.end() - sign.start())
        elif kind == _LONG:
            values += 1
            nbytes += _NUMBER + _SLOT
        elif kind == _COMMA:
            values += 1
            nbytes += _SLOT
        elif kind == _COLON:
            nbytes += _ENTRY
        else:
            values += 1
            containers += 1
            nbytes += _MAP + _FIRST_ENTRY if kind == _BRACE else _LIST + _SLOT
        if values > MAX_VALUES or containers > MAX_CONTAINERS or nbytes > estimate.most:
            break
    estimate.add(nbytes, values, containers)


_STRING_AT_LEAST = _TEXT + _SLOT - 2 * _WIDEST
_COMMA, _STRING, _LONG, _COLON, _BRACE = range(1, 6)
# what a text of JSON is made of, but for small numbers and words: those are known by the comma behind them
_signs = re.compile(rb'(,)|("[^"\\]*+(?:\\.[^"\\]*+)*+"),?|([-+.0-9eE]{3,}+|-[0-9]),?|(:)|(\{)|\[', re.DOTALL).finditer

# of what kind it is (None: a string), the bits of the code that are its length, and its bytes that follow
type _Length = tuple[int | None, int, int]


def _table() -> tuple[bytes, bytes, dict[int, _Length]]:
    # Of each code of msgpack the bytes that a value of known length takes and its bytes in memory, or its length.
    widths, sizes = bytearray([1] * 256), bytearray(256)
    lengths: dict[int, _Length] = {}
    lengths |= dict.fromkeys(range(128, 144), (_MAP, 15, 0)) | {0xDE: (_MAP, 0, 2), 0xDF: (_MAP, 0, 4)}
    lengths |= dict.fromkeys(range(144, 160), (_LIST, 15, 0)) | {0xDC: (_LIST, 0, 2), 0xDD: (_LIST, 0, 4)}
    lengths |= {code: (None, 0, 1 << i) for first in (0xC4, 0xD9) for i, code in enumerate(range(first, first + 3))}
    lengths |= dict.fromkeys((199, 200, 201, *range(212, 217)), (_EXTENSION, 0, 0))
    for code in lengths:
        widths[code] = 0
    for i, code in enumerate(range(0xA0, 0xC0)):
        widths[code], sizes[code] = 1 + i, _TEXT + _WIDE * i if i > 1 else 0
    for code, width in {0xCA: 4, 0xCB: 8, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}.items():
        widths[code], sizes[code] = 1 + width, _NUMBER
    widths[0xCC] = 2
    for code in range(0xE0, 0xFB):
        sizes[code] = _NUMBER
    return bytes(widths), bytes(sizes), lengths


_WIDTHS, _SIZES, _LENGTHS = _table()
