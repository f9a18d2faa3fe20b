"""Asking a trainer's server for a version: the member's end of ``server``.

::

    CLOSED --open: meet, ask, read the answer--> OPEN --fill: bytes as they come--> (done) --close--> CLOSED
                        |                             |
                        +--refused, late, cancelled---+--the trainer is gone or silent: LinkError

One connection for each version. Failures: a version that is gone is a ``VersionGoneError``; the explorer answers that
it did not get it and is named again for the newest. Every wait ends with the time limit, and within moments of being
cancelled.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trinity_bus.weights.channel import Channel, meet
from trinity_bus.weights.errors import VersionGoneError
from trinity_bus.weights.manifest import TransferManifest
from trinity_bus.weights.transport import Offer, Source
from trinity_bus.weights.wire import ANSWER, REQUEST, WeightsRequest

if TYPE_CHECKING:
    import torch


class MemoryTransport:
    """A ``WeightTransport`` from a trainer's server. It is used for one version."""

    device = "cpu"

    def __init__(self) -> None:
        self._channel: Channel | None = None

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        """See ``WeightTransport``.

        Raises:
            VersionGoneError: The trainer refused.
            LinkError: It does not answer, or is not the trainer.
            ManifestError: It offers something else.
        """
        self._channel = channel = meet(source, cancelled)
        channel.send(REQUEST.encode(WeightsRequest(source.version, source.checksum, held)))
        answer = ANSWER.decode(channel.receive(ANSWER.limit))
        if answer.refusal:
            raise VersionGoneError(f"the trainer refused: {answer.refusal}")
        manifest = TransferManifest.from_json(answer.manifest)
        source.check(manifest)
        return Offer(manifest, answer.changes)

    def fill(self, buffers: "Sequence[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        """See ``WeightTransport``."""
        for i, buffer in enumerate(buffers):
            self._fill(memoryview(buffer.numpy()))
            arrived(i)

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _fill(self, view: memoryview) -> None:
        assert self._channel is not None  # noqa: S101 - ``open`` made it
        self._channel.read_into(view)
