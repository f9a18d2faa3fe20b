"""The batches in the bytes of a fetch, told apart by their lengths; nothing else of them is looked at."""

import struct
from typing import Final

# Of a batch of format 2: base offset, length, leader epoch, magic, CRC, attributes, delta of the last offset, first and
# largest time, producer's id, epoch and sequence, number of records.
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
MAGIC_AT: Final = 16

_LENGTH: Final = struct.Struct(">i")
_OVERHEAD: Final = 12  # bytes of the offset and the length, in front of what the length counts


class Frames:
    # The client library looks at it by these methods.
    def __init__(self, data: bytes | None) -> None:
        self._data = memoryview(data or b"")
        self._at = 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        # The last one may be cut off, and comes whole with the next fetch.
        left = len(self._data) - self._at
        # Where not even the first is whole its length lies: a broker always sends one that is.
        return left > 0 and (not self._at or left >= _OVERHEAD + max(self._length(), 0))

    def next_frame(self) -> memoryview | None:
        # ``None`` where its length is nonsense, and nothing can follow.
        data, begin = self._data, self._at
        left, size = len(data) - begin, _OVERHEAD + self._length()
        # Batches of old formats may be smaller than the header of today's, and are told apart by their magic.
        if not HEADER.size <= size <= left and not (MAGIC_AT < size <= left and data[begin + MAGIC_AT] < 2):
            return None
        self._at = end = begin + size
        return data[begin:end]

    def base_of_next(self) -> int | None:
        # The first offset of the batch that follows, if it has come and looks like one.
        if len(self._data) - self._at < HEADER.size or self._data[self._at + MAGIC_AT] != 2:
            return None
        return int(struct.unpack_from(">q", self._data, self._at)[0])

    def rest(self) -> memoryview:
        # What has not been taken yet; it is now.
        rest = self._data[self._at :]
        self._at = len(self._data)
        return rest

    def _length(self) -> int:
        if len(self._data) - self._at < _OVERHEAD:
            return 0
        length: int = _LENGTH.unpack_from(self._data, self._at + 8)[0]
        return length
