"""The bytes of a version on the channel itself: what ``carrier`` says, over TCP. Frames of chunks: ``held_version``."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trinity_bus import awake
from trinity_bus.weights.carrier import Arrived
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import WireError
from trinity_bus.weights.held_version import FRAME, LEAVE, PIECE, HeldVersion, send_piece

if TYPE_CHECKING:
    import torch

    from trinity_bus.weights.file_buckets import FileBucket, FileBuckets


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
