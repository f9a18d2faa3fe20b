"""Whether a checkpoint holds what was announced, for whoever has another process load it.

One bucket is in memory at a time, but for those that wait to be hashed.
"""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trinity_bus.weights.checkpoint.transport import CheckpointTransport
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.hashing import ContentHash
from trinity_bus.weights.manifest import TransferManifest
from trinity_bus.weights.transport import Source

if TYPE_CHECKING:
    import torch


def prove(transport: CheckpointTransport, source: Source, cancelled: threading.Event) -> TransferManifest:
    """Read a whole version and compare its digest.

    ``transport`` holds the checkpoint until it is closed, however this ends.
    """
    import torch

    manifest = transport.open(source, None, cancelled).manifest
    full: list[torch.Tensor] = []

    def empty() -> "Iterator[torch.Tensor]":
        for bucket in manifest.buckets():
            full.append(torch.zeros(bucket.nbytes, dtype=torch.uint8))
            yield full[-1]

    with ContentHash() as hashing:

        def arrived(_: int) -> None:
            hashing.put(full.pop())

        transport.fill(empty(), arrived)
    if hashing.hexdigest() != manifest.content:
        raise WeightTransferError(
            f"the bytes of version {source.version} have digest {hashing.hexdigest()}, announced was {manifest.content}"
        )
    return manifest
