"""The bytes of a version over a channel, by TCP: chunk after chunk, as somebody gets them.

What is held of a version is sent to others while it grows::

    WAITING --attach: there are buffers--> GROWING --prove, ...--> (whole)
       |                                      |                        |
       +-------------------- retire: nobody reads the buffers any more-+--> RETIRED

A *frame* is the number of bytes that follow, and these: whole chunks of one bucket, in order. An empty one says that
there is nothing new and that its sender lives. Failures: whoever is sent something when it is retired, or takes nothing
within its connection's time limit, sees the connection end.
"""

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from trinity_bus import awake
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError, WeightTransferError, WireError
from trinity_bus.weights.layout import HASH_BYTES, Span, chunk_hash

if TYPE_CHECKING:
    import torch

    from trinity_bus.weights.staging import FileBucket

FRAME: Final = struct.Struct(">I")
PIECE: Final = 1 << 20  # that a member must take within the time limit
BEAT_S: Final = 0.5  # between two empty frames

type Arrived = Callable[[int], None]  # is given the index of each buffer that is full, in order


class HeldVersion:
    """A version as far as it is proven here. All methods may be called from any thread."""

    def __init__(self, version: int, checksum: str, chunks: list[Span], hashes: bytes = b"") -> None:
        self.version = version
        self.checksum = checksum
        self.chunks = chunks
        self._hashes = hashes
        self.proven = 0  # how many chunks, from the first on
        self._buffers: Sequence[_View] = ()
        self._changed = threading.Condition()
        self._readers = 0
        self._retired = False

    @property
    def is_whole(self) -> bool:
        return self.proven == len(self.chunks)

    def attach(self, buffers: "Sequence[torch.Tensor | FileBucket]", *, proven: int = 0) -> None:
        with self._changed:
            self._buffers, self.proven = [_View(buffer) for buffer in buffers], proven
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

    def place(self, first: int, end: int) -> memoryview:
        bucket, start, _ = self.chunks[first]
        return self._buffers[bucket][start : self.chunks[end - 1][2]]

    def send(self, channel: Channel, first: int) -> None:
        """Send the chunks from ``first`` on, each as soon as it is proven."""
        with self._reading():
            while first < len(self.chunks):
                proven = self._grown(first, BEAT_S)
                if proven <= first:
                    channel.write(FRAME.pack(0))
                    continue
                end = self._end_of_piece(first, proven)
                piece = self.place(first, end)
                channel.write(FRAME.pack(len(piece)))
                send_piece(channel, piece)
                first = end

    def receive(self, channel: Channel, arrived: Arrived, limit_s: float | None) -> None:
        """Receive and prove the chunks that are missing. ``limit_s``: of each whole chunk; unset: something must come.

        LinkError: the sender is gone or silent. WeightTransferError: it sends something else.
        """
        deadline = None if limit_s is None else awake.now() + limit_s
        while not self.is_whole:
            (left,) = FRAME.unpack(channel.read(FRAME.size, deadline))
            while left:
                number = self.proven
                view = memoryview(b"") if self.is_whole else self.place(number, number + 1)
                if not 0 < len(view) <= left:
                    raise WireError("a frame holds something else than whole chunks")
                channel.read_into(view, deadline)
                self.prove(view)
                left -= len(view)
                deadline = None if limit_s is None else awake.now() + limit_s
                if self.ends_bucket(number):
                    arrived(self.chunks[number][0])

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

    def _grown(self, proven: int, limit_s: float) -> int:
        # Waits a little for more than so many proven chunks; returns how many there are.
        with self._changed:
            grown = partial(self._changed.wait_for, lambda: self._retired or self.proven > proven)
            awake.wait_in_thread(grown, limit_s)
            if self._retired:
                raise LinkError(f"version {self.version} is not passed on any more")
            return self.proven

    def _end_of_piece(self, first: int, stop: int) -> int:
        # Of what is sent together with ``first``: its neighbours in its bucket, before ``stop``.
        bucket, start, _ = self.chunks[first]
        end = first + 1
        while end < stop and self.chunks[end][0] == bucket and self.chunks[end][2] - start <= PIECE:
            end += 1
        return end


class _View:
    """A buffer, of which each slice is a ``memoryview``; read from its file where it is in one."""

    def __init__(self, buffer: "torch.Tensor | FileBucket") -> None:
        self._buffer = buffer

    def __getitem__(self, part: slice) -> memoryview:
        return memoryview(self._buffer[part].numpy())


def send_piece(channel: Channel, piece: memoryview) -> None:
    channel.write(piece)
