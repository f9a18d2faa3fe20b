"""What carries the bytes of a version between two who have met on a channel: frames on the channel itself, or links.

Who asks whom for what, who passes on, and what is proven, is the same for frames and links (``link.carrier``): see
``pull``. What somebody holds of a version is sent to others while it grows::

    WAITING --attach: there are buffers--> GROWING --prove, ...--> (whole)
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
from typing import TYPE_CHECKING, Any, Final, Protocol

from trinity_bus import awake
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError, WeightTransferError, WireError
from trinity_bus.weights.layout import HASH_BYTES, Span, behind_piece, chunk_hash

if TYPE_CHECKING:
    import torch

    from trinity_bus.weights.staging import FileBucket, FileBuckets

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


type Arrived = Callable[[int], None]  # Told the index of each buffer that is full, in order


class Sender(Protocol):
    """One end, which sends. One thread uses it. ``LinkError``: the other end does not take what is sent."""

    def whole(self, parts: Sequence[Any]) -> None:
        """Send buffers, one after the other, to who takes them as a whole."""
        ...

    def chunks(self, holding: HeldVersion, first: int, goes_on: Callable[[int], bool] = lambda _: True) -> bool:
        """Send the chunks from ``first`` on, each as soon as it is proven. Return whether all are sent.

        ``goes_on`` is called now and then with how many the other side has; if it says no, others send the rest.
        """
        ...

    def close(self) -> None:
        """Let go of what this has made, without waiting for it; not of the channel."""
        ...

    @property
    def still_reads(self) -> bool:
        """Whether something that cannot be stopped may still read what was to be sent."""
        ...


class Taker(Protocol):
    """The other end. One thread uses it. ``LinkError``: the sender is gone or silent."""

    def meet(self, *, chunks: bool) -> None:
        """Have ready what bytes come over, once the other side has said that it sends."""
        ...

    def whole(self, buffers: "Sequence[torch.Tensor]", arrived: Arrived) -> None: ...

    def chunks(
        self, holding: HeldVersion, buffers: "list[torch.Tensor]", arrived: Arrived, limit_s: float | None
    ) -> bool:
        """Take chunks and prove them. Return whether all are there; else, others send the rest.

        A buffer that something may still write to is replaced before this raises. ``limit_s``: in which a whole chunk
        must come; unset: something must. ``WeightTransferError``: who sends is gone, or sends something else.
        """
        ...

    def close(self) -> None: ...


class Carrier(Protocol):
    """What makes both ends of a connection by which bytes of versions come."""

    @property
    def keeps(self) -> bool:
        """Whether it is worth while to keep a channel, and what was made over it, from version to version."""
        ...

    def views(self, buffers: "Sequence[torch.Tensor] | FileBuckets") -> Sequence[Any]:
        """Return what a ``HeldVersion`` is to be attached to, and :meth:`Sender.whole` is given."""
        ...

    def sender(self, channel: Channel) -> Sender: ...

    def taker(self, channel: Channel) -> Taker: ...


class _View:
    """A buffer, of which each slice is a ``memoryview``; read from its file where it is in one."""

    def __init__(self, buffer: "torch.Tensor | FileBucket") -> None:
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._buffer)

    def __getitem__(self, part: slice) -> memoryview:
        return memoryview(self._buffer[part].numpy())


class FrameCarrier:
    """A ``Carrier``. What is said and the bytes follow each other, so nothing is made and nothing kept."""

    keeps = False

    def views(self, buffers: "Sequence[torch.Tensor] | FileBuckets") -> "list[_View]":
        return [_View(buffer) for buffer in buffers]

    def sender(self, channel: Channel) -> "FrameSender":
        return FrameSender(channel)

    def taker(self, channel: Channel) -> "FrameTaker":
        return FrameTaker(channel)


class FrameSender:
    still_reads = False

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def whole(self, parts: Sequence[Any]) -> None:
        for part in parts:
            view = part if isinstance(part, _View) else memoryview(part)
            for start in range(0, len(view), PIECE):
                send_piece(self._channel, view[start : start + PIECE])

    def chunks(self, holding: HeldVersion, first: int, goes_on: Callable[[int], bool] = lambda _: True) -> bool:
        return holding.send(self._channel, first, goes_on)

    def close(self) -> None:
        """Nothing was made."""


class FrameTaker:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def meet(self, *, chunks: bool) -> None:
        """Nothing is to be made."""

    def whole(self, buffers: "Sequence[torch.Tensor]", arrived: Arrived) -> None:
        for i, buffer in enumerate(buffers):
            self._channel.read_into(memoryview(buffer.numpy()))
            arrived(i)

    def chunks(
        self, holding: HeldVersion, buffers: "list[torch.Tensor]", arrived: Arrived, limit_s: float | None
    ) -> bool:
        del buffers
        channel, chunks = self._channel, holding.chunks
        deadline = None if limit_s is None else awake.now() + limit_s
        while holding.proven < len(chunks):
            (left,) = FRAME.unpack(channel.read(FRAME.size, deadline))
            if left == LEAVE:
                return False
            while left:
                number = holding.proven
                view = holding.place(number, number + 1) if number < len(chunks) else memoryview(b"")
                if not 0 < len(view) <= left:
                    raise WireError("a frame holds something else than whole chunks")
                channel.read_into(view, deadline)
                holding.prove(view)
                left -= len(view)
                deadline = None if limit_s is None else awake.now() + limit_s
                if holding.ends_bucket(number):
                    arrived(chunks[number][0])
        return True

    def close(self) -> None:
        """Nothing was made."""
