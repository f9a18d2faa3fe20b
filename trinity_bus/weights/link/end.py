"""One end of a link that carries whole versions, bucket after bucket, large ones in parts.

::

    CLOSED --first version: the link is made over the channel--> OPEN --next version--> OPEN ... --close--> CLOSED

A broadcast that is under way cannot be stopped: it may read or write its buffer until it runs out. So buffers with
broadcasts under way are given up with their link (``still_uses``).

Failures: ``LinkError``. Where the other side dies, its channel ends, which every wait looks at; gloo says so, too, or
does not. Where it hangs, nothing moves within the channel's time limit.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from trinity_bus import awake
from trinity_bus.runtime.device import uses_gpu
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError, WeightTransferError
from trinity_bus.weights.link.link import Backend, Link, open_link

if TYPE_CHECKING:
    import torch
    from torch.distributed import Work

    from trinity_bus.weights.staging import FileBucket

_PART: Final = 64 << 20  # bytes that are moved at once
_PARTS: Final = 2  # Under way: one is copied off or onto a GPU while the other is on the wire
_MEETING_S: Final = 10.0  # At least: a machine that has much else to do needs its time


class LinkEnd:
    """Sends as rank 0, receives as rank 1. One thread uses it. ``gpu``: over which NCCL sends; by default its own."""

    def __init__(self, channel: Channel, backend: Backend, rank: Literal[0, 1], gpu: "torch.device | None") -> None:
        self._channel = channel
        self._backend: Backend = backend
        self._rank: Literal[0, 1] = rank
        self._gpu = gpu_of(backend, gpu)
        self._link: Link | None = None

    @property
    def still_uses(self) -> bool:
        """Whether something that cannot be stopped may still read or write what was to be moved."""
        return self._link is not None and self._link.in_flight

    def open(self) -> Link:
        """Make the link, unless it is there: a member, as soon as it knows that bytes are to come."""
        if self._gpu is not None:
            import torch

            # Each thread begins with the machine's first one.
            torch.cuda.set_device(self._gpu)
        if self._link is None:
            limit_s = max(self._channel.timeout_s, _MEETING_S)
            self._link = open_link(self._channel, self._rank, backend=self._backend, timeout_s=limit_s)
        return self._link

    def move(self, buffers: "Sequence[torch.Tensor | FileBucket]", moved: Callable[[int], None]) -> None:
        """Send or receive buffers one after the other, cut alike at both ends; ``moved`` is given each one's index."""
        link = self.open()
        under_way: deque[tuple[Work, int]] = deque()

        def wait() -> None:
            work, ends = under_way.popleft()
            link.wait(work, awake.now() + self._channel.timeout_s, self._channel.cancelled, self._there)
            if ends >= 0:
                moved(ends)

        for i, buffer in enumerate(buffers):
            for start in range(0, len(buffer), _PART):
                if len(under_way) == _PARTS:
                    wait()
                ends = i if start + _PART >= len(buffer) else -1
                under_way.append((link.broadcast(buffer[start : start + _PART]), ends))
        while under_way:
            wait()

    def close(self) -> None:
        """Let go of the link, without waiting for it; not of the channel."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _there(self) -> None:
        if not self._channel.is_open():
            raise LinkError("the other side is gone")


def gpu_of(backend: Backend, device: "torch.device | None") -> "torch.device | None":
    """Return what a link needs a GPU for: none for gloo. WeightTransferError: nccl, and there is none."""
    if backend == "gloo":
        return None
    import torch

    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if uses_gpu() else torch.device("cpu")
    if device.type != "cuda":
        raise WeightTransferError(
            f"nccl carries versions from GPU to GPU, and here they would lie on {device.type}: "
            "set synchronizer.sync_method to memory"
        )
    return device
