"""Receiving over a link: the member's end of ``publisher``.

::

    CLOSED --open: meet (``channel``), be told the manifest, open the link--> OPEN --fill--> OPEN
                                                                               |  |
                                            link and channel kept for the next +  +--failed--> close

They are kept from version to version as long as the trainer goes on using them (the same epoch); where it has closed
them meanwhile, the member comes anew. Failures: see ``link`` and ``channel``. Whatever goes wrong, ``close`` and a new
feed is all that is left.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from trinity_bus.weights.channel import Channel, meet
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.link.link import Backend, Link, local_address, open_link
from trinity_bus.weights.manifest import TransferManifest
from trinity_bus.weights.transport import Offer, Source
from trinity_bus.weights.wire import LINK, StoreEntry

if TYPE_CHECKING:
    import torch

    from trinity_bus.weights.link.store import LinkStore


class LinkTransport:
    """A ``WeightTransport`` over links. It is used for one version after another."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._store: LinkStore | None = None
        self._trainer: tuple[str, int, str] | None = None
        """Host, port and this member's name there."""
        self._link: Link | None = None
        self._timeout_s = 0.0
        self._cancelled = threading.Event()

    @property
    def device(self) -> str:
        """Where buffers must lie."""
        return "cpu" if self._link is None else self._link.device

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        """See ``WeightTransport``. What the member holds is of no interest here: all bytes are sent."""
        del held
        self._cancelled, self._timeout_s = cancelled, source.timeout_s
        manifest = self._told_again(source)
        if manifest is None:
            self.close()
            manifest = self._told_anew(source)
        source.check(manifest)
        if self._link is None:
            assert self._store is not None  # noqa: S101 - came with the channel
            self._link = open_link(
                self._store,
                1,
                address=local_address(source.host, source.port),
                backend=cast("Backend", source.method),
                timeout_s=source.timeout_s,
            )
        return Offer(manifest)

    def fill(self, buffers: "Sequence[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        """See ``WeightTransport``."""
        assert self._link is not None  # noqa: S101 - ``open`` made it
        works = [self._link.broadcast(buffer) for buffer in buffers]
        for i, work in enumerate(works):
            self._link.wait(work, time.monotonic() + self._timeout_s, self._cancelled)
            arrived(i)

    def close(self) -> None:
        """Let go of the link. What its pending operations write to, it keeps until they have ended."""
        if self._link is not None:
            self._link.close()
        if self._channel is not None:
            self._channel.close()
        self._link = self._channel = self._store = self._trainer = None

    def _told_again(self, source: Source) -> TransferManifest | None:
        """Return the manifest, over the channel of the last transfer; None where there is no such channel any more."""
        if self._channel is None or self._link is None or self._trainer != _trainer(source):
            return None
        self._channel.cancelled = self._cancelled
        if not self._channel.is_open():
            return None
        try:
            return self._told(self._channel, source)
        except LinkError:
            if self._cancelled.is_set() or self._channel.is_open():
                raise
            # The trainer has given this link up, as it does with one that was late.
            return None

    def _told_anew(self, source: Source) -> TransferManifest:
        from trinity_bus.weights.link.store import LinkStore

        self._channel = meet(source, self._cancelled)
        self._store = LinkStore(self._channel, source.timeout_s)
        self._trainer = _trainer(source)
        return self._told(self._channel, source)

    def _told(self, channel: Channel, source: Source) -> TransferManifest:
        """Return the manifest that the trainer sends first.

        Raises:
            LinkError: It sends nothing, or something else.
        """
        try:
            # Entries are what a group has said to its other end after the last version, and nobody has asked for.
            while isinstance(said := LINK.decode(channel.receive(LINK.limit)), StoreEntry):
                continue
        except LinkError as error:
            where = f"{source.host}:{source.port}"
            raise LinkError(f"the trainer at {where} did not serve {source.prefix}: {error}") from error
        return TransferManifest.from_json(said.manifest)


def _trainer(source: Source) -> tuple[str, int, str]:
    return source.host, source.port, source.prefix
