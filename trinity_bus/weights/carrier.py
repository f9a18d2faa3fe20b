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

type Arrived = Callable[[int], None]
"""Told the index of each buffer that is full, in order."""


class Sender(Protocol):
    """One end, which sends. One thread uses it."""

    def whole(self, parts: Sequence[Any]) -> None:
        """Send buffers, one after the other, to who takes them as a whole.

        Raises:
            LinkError: They are not taken.
        """
        ...

    def chunks(self, holding: HeldVersion, first: int, goes_on: Callable[[int], bool] = lambda _: True) -> bool:
        """Send the chunks from ``first`` on, each as soon as it is proven. Return whether all are sent.

        Args:
            holding: What there is.
            first: How many the other side has.
            goes_on: Asked again and again, and told how many it has by then. If not, the other side is told that others
                send the rest.

        Raises:
            LinkError: They are not taken, or cannot be had any more.
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
    """The other end. One thread uses it."""

    def meet(self, *, chunks: bool) -> None:
        """Have ready what bytes come over, once the other side has said that it sends.

        Args:
            chunks: Whether they come as chunks, rather than as a whole.

        Raises:
            LinkError: It cannot be made.
        """
        ...

    def whole(self, buffers: "Sequence[torch.Tensor]", arrived: Arrived) -> None:
        """Fill buffers, one after the other.

        Raises:
            LinkError: The other side is gone or silent.
        """
        ...

    def chunks(
        self, holding: HeldVersion, buffers: "list[torch.Tensor]", arrived: Arrived, limit_s: float | None
    ) -> bool:
        """Take chunks and prove them. Return whether all are there; else, others send the rest.

        Args:
            holding: What is there so far.
            buffers: Of all of it. One that something may still write to is replaced, before this raises.
            arrived: See there.
            limit_s: In which a whole chunk must come; unset: something must.

        Raises:
            WeightTransferError: Who sends is gone, or sends something else.
        """
        ...

    def close(self) -> None:
        """Let go of what this has made, without waiting for it; not of the channel."""
        ...


class Carrier(Protocol):
    """Kind of connection by which bytes of versions come: makes both ends of one."""

    @property
    def keeps(self) -> bool:
        """Whether it is worth while to keep a channel, and what was made over it, from version to version."""
        ...

    def views(self, buffers: "Sequence[torch.Tensor] | FileBuckets") -> Sequence[Any]:
        """Return what a ``HeldVersion`` is to be attached to, and :meth:`Sender.whole` is given."""
        ...

    def sender(self, channel: Channel) -> Sender:
        """Make the end that sends."""
        ...

    def taker(self, channel: Channel) -> Taker:
        """Make the other one."""
        ...
