"""Chunks on their way: what somebody holds of a version, and sending it to others while it grows.

::

    WAITING --attach: there are buffers--> GROWING --advance, ...--> (whole)
       |                                      |                        |
       +-------------------- retire: nobody reads the buffers any more-+--> RETIRED

A *frame* is the number of bytes that follow, and these: whole chunks of one bucket, in order. An empty one says that
there is nothing new and that its sender lives; one of ``LEAVE`` bytes, that it sends no more and others will. Failures:
whoever is sent something when it is retired, or takes nothing within its connection's time limit, sees the connection
end.
"""

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from trinity_bus import awake
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.chunks import HASH_BYTES, Span, behind_piece, chunk_hash
from trinity_bus.weights.errors import LinkError, WeightTransferError

FRAME: Final = struct.Struct(">I")
LEAVE: Final = (1 << 32) - 1
PIECE: Final = 1 << 20  # that a member must take within the time limit
BEAT_S: Final = 0.5  # between two empty frames


class HeldVersion:
    """A version as far as it is proven here. All methods may be called from any thread."""

    def __init__(self, version: int, checksum: str, chunks: list[Span], hashes: bytes = b"") -> None:
        self.version = version
        self.checksum = checksum
        self.chunks = chunks
        self._hashes = hashes
        self.proven = 0  # how many chunks, from the first on
        self._buffers: Sequence[Any] = ()
        self._changed = threading.Condition()
        self._readers = 0
        self._retired = False

    @property
    def is_whole(self) -> bool:
        return self.proven == len(self.chunks)

    def attach(self, buffers: Sequence[Any], *, proven: int = 0) -> None:
        """Say where the bytes are, or will be: in what can be sliced, by bytes."""
        with self._changed:
            self._buffers, self.proven = buffers, proven
            self._changed.notify_all()

    def prove(self, chunk: memoryview) -> None:
        """Compare the next chunk with its hash, and note that it is proven."""
        number = self.proven
        if chunk_hash(chunk) != self._hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES]:
            raise WeightTransferError(f"chunk {number} has other bytes than the trainer has told of")
        with self._changed:
            self.proven += 1
            self._changed.notify_all()

    def ends_bucket(self, number: int) -> bool:
        return number + 1 == len(self.chunks) or self.chunks[number + 1][0] != self.chunks[number][0]

    def retire(self) -> None:
        """Return when nobody reads the buffers any more; whoever sends of them must have been woken."""
        with self._changed:
            self._retired = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._readers)

    def place(self, first: int, end: int) -> Any:
        bucket, start, _ = self.chunks[first]
        return self._buffers[bucket][start : self.chunks[end - 1][2]]

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        with self._changed:
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    def grown(self, proven: int, limit_s: float) -> int:
        """Wait a little for more than so many proven chunks; return how many there are."""
        with self._changed:
            grown = partial(self._changed.wait_for, lambda: self._retired or self.proven > proven)
            awake.wait_in_thread(grown, limit_s)
            if self._retired:
                raise LinkError(f"version {self.version} is not passed on any more")
            return self.proven

    def send(self, channel: Channel, first: int, goes_on: Callable[[int], bool] = lambda _: True) -> bool:
        with self.reading():
            while first < len(self.chunks):
                if not goes_on(first):
                    channel.write(FRAME.pack(LEAVE))
                    return False
                proven = self.grown(first, BEAT_S)
                if proven <= first:
                    channel.write(FRAME.pack(0))
                    continue
                end = behind_piece(self.chunks, first, proven, PIECE)
                piece = self.place(first, end)
                channel.write(FRAME.pack(len(piece)))
                send_piece(channel, piece)
                first = end
        return True


def send_piece(channel: Channel, piece: memoryview) -> None:
    channel.write(piece)
