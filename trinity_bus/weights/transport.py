"""What all ways have in common on which a version can come to a member.

::

    source --open: meet, read and check the manifest--> OPEN --fill: bytes into buffers, in order--> (done)
               |                                          |
               +---- too late, broken, cancelled, refused, other content: WeightTransferError -------+

One thread at a time uses a transport, for version after version: it keeps what the next one can use. Each of its waits
has a limit and ends soon after ``cancelled`` is set.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from schemas.model_version import ModelVersion
from trinity_bus.weights.errors import ManifestError
from trinity_bus.weights.layout import TransferManifest

if TYPE_CHECKING:
    import torch

type Method = Literal["gloo", "nccl", "memory", "checkpoint", "object"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    method: Method = "gloo"
    host: str = ""  # of the trainer; for ``object`` the URL of its versions; not for ``checkpoint``
    port: int = 0
    prefix: str  # ``{trainer_incarnation}/{epoch}/{explorer}``: names the member
    version: int
    checksum: str  # as announced; the manifest and the bytes must agree with it
    secret: str = field(default="", repr=False)  # of the announcement, hex; see ``channel``; for links and ``memory``
    cafile: str = ""  # certificates to trust; where given, a pull is by TLS
    fan_out: bool = True  # This member may pass a version on to others of the announcement; never with TLS
    folder: str = ""  # of the checkpoint; for ``checkpoint`` alone
    root: str = ""  # the member's own ``object_url``; for ``object`` alone
    timeout_s: float = 30.0  # of each step

    def check(self, manifest: TransferManifest) -> None:
        """Compare what is offered with what was announced; ManifestError where they differ."""
        if manifest.version != self.version or manifest.checksum != self.checksum:
            raise ManifestError(
                f"what is offered is version {manifest.version} with checksum {manifest.checksum}, "
                f"announced was {self.version} with {self.checksum}"
            )


def source_of(
    announced: ModelVersion,
    explorer: str,
    timeout_s: float = 30.0,
    cafile: Path | None = None,
    *,
    fan_out: bool = True,
    object_url: str | None = None,
) -> Source:
    """Return where an explorer finds an announced version."""
    return Source(
        method=announced.method,
        host=announced.master_address,
        port=announced.master_port,
        prefix=f"{announced.trainer_incarnation}/{announced.epoch}/{explorer}",
        version=announced.version,
        checksum=announced.checksum,
        secret=announced.secret or "",
        cafile="" if cafile is None else str(cafile.resolve()),
        fan_out=fan_out,
        folder=announced.checkpoint or "",
        root=object_url or "",
        timeout_s=timeout_s,
    )


class WeightTransport(Protocol):
    def open(self, source: Source, cancelled: threading.Event, has: int = 0) -> TransferManifest:
        """Meet the other side. Return what it offers, checked.

        ``has``: how many chunks of it are in the buffers that are to be filled, from the first on, proven.
        """
        ...

    def fill(self, buffers: "list[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        """Receive all buckets, into uint8 buffers of their sizes.

        ``arrived`` is called whenever something has come, with the index of the last bucket that is full, or -1.
        """
        ...

    @property
    def proven(self) -> int:
        """How many chunks are in the buffers, from the first on, proven, since ``fill`` was called."""
        ...

    @property
    def still_uses(self) -> bool:
        """Whether something that cannot be stopped may still write into the buffers."""
        ...

    def end(self) -> None:
        """Note that the version has come whole."""
        ...

    def close(self) -> None: ...
