"""What carries the bytes of a version between two who have met, and talk about it, on a channel.

=============  ===========================================================  ====================
carrier        bytes                                                        module
=============  ===========================================================  ====================
frames         on the channel itself                                        ``frames``
links          over a process group of the two, by gloo or NCCL             ``link.carrier``
=============  ===========================================================  ====================

Who asks whom for what, who passes on, and what is proven, is the same for both: ``pull``.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trinity_bus.weights.channel import Channel
from trinity_bus.weights.held_version import HeldVersion

if TYPE_CHECKING:
    import torch

    from trinity_bus.weights.file_buckets import FileBuckets

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
    """Makes both ends of a connection by which bytes of versions come."""

    @property
    def keeps(self) -> bool:
        """Whether it is worth while to keep a channel, and what was made over it, from version to version."""
        ...

    def views(self, buffers: "Sequence[torch.Tensor] | FileBuckets") -> Sequence[Any]:
        """Return what a ``HeldVersion`` is to be attached to, and :meth:`Sender.whole` is given."""
        ...

    def sender(self, channel: Channel) -> Sender: ...

    def taker(self, channel: Channel) -> Taker: ...
