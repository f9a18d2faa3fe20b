"""What all ways have in common on which a version can come to a member.

::

    source --open: meet, read and check the manifest--> OPEN --fill: bytes into buffers, in order--> (done)
               |                                          |
               +---- too late, broken, cancelled, refused, other content: WeightTransferError -------+

====================  ==========================================================  ==================
way                   where the bytes are                                         module
====================  ==========================================================  ==================
``gloo``, ``nccl``    asked of the trainer's server, or of members it names;      ``pull.transport``,
                      they come over private links                                ``link.carrier``
``memory``            likewise; they come over the connection                     ``pull.transport``
``checkpoint``        a folder that both see                                      ``checkpoint.transport``
====================  ==========================================================  ==================

A transport is used by one thread. Each of its waits has a limit and ends soon after ``cancelled`` is set.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from trinity_bus.weights.delta import Change
from trinity_bus.weights.errors import ManifestError
from trinity_bus.weights.manifest import TransferManifest

if TYPE_CHECKING:
    import torch

type Method = Literal["gloo", "nccl", "memory", "checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a version comes from."""

    method: Method = "gloo"
    host: str = ""
    """Of the trainer; not for ``checkpoint``."""
    port: int = 0
    prefix: str
    """``{trainer_incarnation}/{epoch}/{explorer}``: names the member."""
    version: int
    checksum: str
    """As announced; the manifest and the bytes must agree with it."""
    secret: str = field(default="", repr=False)
    """Of the announcement, hex; see ``proof``. Not for ``checkpoint``."""
    cafile: str = ""
    """Certificates to trust; where given, a pull is by TLS."""
    fan_out: bool = True
    """Whether this member may pass a version on to others of the announcement; never with TLS."""
    folder: str = ""
    """Of the checkpoint; for ``checkpoint`` alone."""
    timeout_s: float = 30.0
    """Limit of each step."""

    def check(self, manifest: TransferManifest) -> None:
        """Compare what is offered with what was announced.

        Raises:
            ManifestError: They differ.
        """
        if manifest.version != self.version or manifest.checksum != self.checksum:
            raise ManifestError(
                f"what is offered is version {manifest.version} with checksum {manifest.checksum}, "
                f"announced was {self.version} with {self.checksum}"
            )


@dataclass(frozen=True, slots=True)
class Offer:
    """What a transport is about to deliver."""

    manifest: TransferManifest
    changes: tuple[Change, ...] | None = None
    """Where not None, the bytes are the payload of a delta to what the member holds."""
    kept: int = 0
    """Bytes of the version that are in the member's buffers already, and do not come."""


class WeightTransport(Protocol):
    """One way on which versions come."""

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        """Meet the other side.

        Args:
            source: What to get, and from where.
            held: Checksum of the bytes that the member holds, if it holds a whole version.
            cancelled: Set by someone who wants this transfer to end.

        Raises:
            WeightTransferError: It did not come about.
        """
        ...

    def fill(self, buffers: "list[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        """Receive what was offered: all buckets, or the payload of a delta.

        Args:
            buffers: uint8, of the right sizes. One into which something may still be written by somebody who has
                failed is replaced by another, until ``arrived`` was told of it.
            arrived: Called with the index of each buffer that is full, in order.

        Raises:
            WeightTransferError: It broke off.
        """
        ...

    def close(self) -> None:
        """Let go of everything, without waiting for it."""
        ...
