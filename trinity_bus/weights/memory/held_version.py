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
from typing import Final

from trinity_bus.weights.channel import Channel
from trinity_bus.weights.chunks import Span
from trinity_bus.weights.errors import LinkError

FRAME: Final = struct.Struct(">I")
LEAVE: Final = (1 << 32) - 1
PIECE: Final = 1 << 20
"""Bytes that a member must take within the time limit."""
BEAT_S: Final = 0.5
"""Between two empty frames."""


class HeldVersion:
    """A version as far as it is proven here. All methods may be called from any thread.

    Args:
        version: Its number.
        checksum: As announced.
        chunks: All of it.
    """

    def __init__(self, version: int, checksum: str, chunks: list[Span]) -> None:
        self.version = version
        self.checksum = checksum
        self.chunks = chunks
        self.proven = 0
        """How many chunks; from the first on."""
        self._buffers: Sequence[memoryview] = ()
        self._changed = threading.Condition()
        self._readers = 0
        self._retired = False

    @property
    def is_whole(self) -> bool:
        """Whether all of it is proven."""
        return self.proven == len(self.chunks)

    def attach(self, buffers: Sequence[memoryview], *, proven: int = 0) -> None:
        """Say where the bytes are, or will be."""
        with self._changed:
            self._buffers, self.proven = buffers, proven
            self._changed.notify_all()

    def advance(self) -> None:
        """Note that one more chunk is proven."""
        with self._changed:
            self.proven += 1
            self._changed.notify_all()

    def retire(self) -> None:
        """Return when nobody reads the buffers any more; whoever sends of them must have been woken."""
        with self._changed:
            self._retired = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._readers)

    def chunk(self, number: int) -> memoryview:
        """Return the place of a chunk."""
        bucket, start, end = self.chunks[number]
        return self._buffers[bucket][start:end]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._changed:
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    def send(self, channel: Channel, first: int, goes_on: Callable[[int], bool] = lambda _: True) -> bool:
        """Send the chunks from ``first`` on, each as soon as it is proven. Return whether all are sent.

        Args:
            channel: To a member.
            first: How many it has.
            goes_on: Asked before each frame, and told how many it has by then.

        Raises:
            LinkError: They are not taken, or cannot be had any more.
        """
        with self._reading():
            while first < len(self.chunks):
                if not goes_on(first):
                    channel.write(FRAME.pack(LEAVE))
                    return False
                with self._changed:
                    self._changed.wait_for(lambda: self._retired or self.proven > first, BEAT_S)  # noqa: B023
                    if self._retired:
                        raise LinkError(f"version {self.version} is not passed on any more")
                    proven = self.proven
                if proven <= first:
                    channel.write(FRAME.pack(0))
                    continue
                bucket, start, end = self.chunks[first]
                first += 1
                while first < proven and self.chunks[first][0] == bucket and self.chunks[first][2] - start <= PIECE:
                    end = self.chunks[first][2]
                    first += 1
                channel.write(FRAME.pack(end - start))
                send_piece(channel, self._buffers[bucket][start:end])
        return True


def send_piece(channel: Channel, piece: memoryview) -> None:
    """Send a part of a version, within the connection's time limit."""
    channel.write(piece)
