"""Receiving over a link: the member's end of ``publisher``.

::

    CLOSED --open: read manifest in the trainer's store, meet on the link that it names--> OPEN --fill--> OPEN
                                                                                            |  |
                                                                     link kept for the next +  +--failed--> close

The link is kept from version to version as long as the trainer goes on using it (the same epoch), and so is the
connection to its store. Failures: see ``link``. Whatever goes wrong, ``close`` and a new feed is all that is left.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.feed import Offer, Source
from trinity_bus.weights.link import Backend, Link, join_store, link_key, local_address, open_link
from trinity_bus.weights.manifest import TransferManifest

if TYPE_CHECKING:
    import torch
    from torch.distributed import TCPStore


class LinkFeed:
    """A ``Feed`` over links. It is used for one version after another."""

    def __init__(self) -> None:
        self._store: TCPStore | None = None
        self._address: tuple[str, int] | None = None
        self._link: Link | None = None
        self._link_name = ""
        self._timeout_s = 0.0
        self._cancelled = threading.Event()

    @property
    def device(self) -> str:
        """Where buffers must lie."""
        return "cpu" if self._link is None else self._link.device

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        """See ``Feed``. What the member holds is of no interest here: all bytes are sent."""
        del held
        self._cancelled, self._timeout_s = cancelled, source.timeout_s
        manifest, number = self._read_announcement(source)
        source.check(manifest)
        name = f"{source.prefix}/link{number}"
        if self._link is None or self._link_name != name:
            self.close()
            self._link = open_link(
                self._join(source),
                name,
                1,
                address=local_address(source.host, source.port),
                backend=cast("Backend", source.method),
                timeout_s=source.timeout_s,
            )
            self._link_name = name
        return Offer(manifest)

    def fill(self, buffers: "Sequence[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        """See ``Feed``."""
        assert self._link is not None  # noqa: S101 - ``open`` made it
        works = [self._link.broadcast(buffer) for buffer in buffers]
        for i, work in enumerate(works):
            self._link.wait(work, time.monotonic() + self._timeout_s, self._cancelled)
            arrived(i)

    def close(self) -> None:
        """Let go of the link. What its pending operations write to, it keeps until they have ended."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _join(self, source: Source) -> "TCPStore":
        """The trainer's store; the connection of the last transfer where the trainer is the same."""
        if self._store is None or self._address != (source.host, source.port):
            self._store = join_store(source.host, source.port, timeout_s=source.timeout_s)
            self._address = (source.host, source.port)
        return self._store

    def _read_announcement(self, source: Source) -> tuple[TransferManifest, int]:
        """The manifest, and the number of the link that carries it."""
        from torch.distributed import DistError

        key = f"{source.prefix}/{source.version}"
        store = self._join(source)
        store.set_timeout(timedelta(seconds=source.timeout_s))
        try:
            text, number = store.multi_get([key, link_key(key)])
        except DistError as error:
            reason = str(error).partition("\n")[0][:200]
            raise LinkError(f"the trainer at {source.host}:{source.port} did not serve {key}: {reason}") from error
        if not number.isdigit() or len(number) > 20:
            raise LinkError(f"the trainer names link {number[:20]!r}")
        return TransferManifest.from_json(text), int(number)
