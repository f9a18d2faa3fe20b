"""Asking a trainer's server for a version: the member's end of ``server``.

::

    CLOSED --open: meet, ask, read the answer--> OPEN --fill: bytes as they come--> (done) --close--> CLOSED
                        |                             |
                        +--refused, late, cancelled---+--the trainer is gone or silent: LinkError

With a ``relay``, the member passes on what it takes, and takes it from whom the trainer names: its *holder*, which is
another member of the announcement or the trainer itself. Each chunk is proven as it comes (``chunks``), and passed on::

    TAKING --chunk, right--> TAKING ... --the last one--> (done)
       |                                                           the connection to the trainer stays open meanwhile
       +--the holder is gone, refuses, is silent for ``SILENCE_S``, sends no chunk for ``CHUNK_S``, or a wrong one: ask
          the trainer for another holder, for the chunks from here on; for the trainer itself, where a second one
          could not even be met

One connection for each version. Failures: a version that is gone is a ``VersionGoneError``; the explorer answers that
it did not get it and is named again for the newest. Every wait ends with the time limit, and within moments of being
cancelled. What the trainer itself sends wrong fails the transfer.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trinity_bus.weights.channel import Channel, meet
from trinity_bus.weights.chunks import HASH_BYTES, chunk_hash, spans
from trinity_bus.weights.errors import LinkError, ManifestError, VersionGoneError, WeightTransferError, WireError
from trinity_bus.weights.manifest import TransferManifest
from trinity_bus.weights.memory.held_version import FRAME, HeldVersion
from trinity_bus.weights.memory.relay import Relay
from trinity_bus.weights.transport import Offer, Source
from trinity_bus.weights.wire import ANSWER, REQUEST, WeightsAnswer, WeightsRequest

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

SILENCE_S: Final = 3.0
"""After which a holder counts as gone: it sends an empty frame when it has nothing new."""
CHUNK_S: Final = 10.0
"""After which a holder counts as gone that sends no whole chunk, whatever else: those behind it wait, too."""
_MOST_HOLDERS: Final = 32
"""That may fail one transfer."""


class MemoryTransport:
    """A ``WeightTransport`` from a trainer's server. It is used for one version.

    Args:
        relay: Where this member passes on what it takes; unset: it does not.
    """

    device = "cpu"

    def __init__(self, relay: Relay | None = None) -> None:
        self._relay = relay
        self._source: Source | None = None
        self._channel: Channel | None = None
        self._holding: HeldVersion | None = None
        self._hashes = b""
        self._holder: tuple[str, int] | None = None

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        """See ``WeightTransport``.

        Raises:
            VersionGoneError: The trainer refused.
            LinkError: It does not answer, or is not the trainer.
            ManifestError: It offers something else.
        """
        self._source = source
        self._channel = channel = meet(source, cancelled)
        port = 0 if self._relay is None else self._relay.open(channel.ends[0], source)
        answer = _ask(channel, WeightsRequest(source.version, source.checksum, held, port))
        manifest = TransferManifest.from_json(answer.manifest)
        source.check(manifest)
        if answer.hashes and self._relay is not None:
            chunks = spans((bucket.nbytes for bucket in manifest.buckets()), manifest.bucket_bytes)
            if len(answer.hashes) != len(chunks) * HASH_BYTES:
                raise ManifestError(f"{len(answer.hashes)} bytes of hashes came for {len(chunks)} chunks")
            self._hashes, self._holder = answer.hashes, answer.holder
            self._holding = HeldVersion(source.version, source.checksum, chunks)
            self._relay.hold(self._holding)
        return Offer(manifest, answer.changes)

    def fill(self, buffers: "Sequence[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        """See ``WeightTransport``."""
        assert self._channel is not None  # noqa: S101 - ``open`` made it
        views = [memoryview(buffer.numpy()) for buffer in buffers]
        if self._holding is not None:
            self._holding.attach(views)
            self._fill_chunks(self._channel, self._holding, arrived)
            return
        for i, view in enumerate(views):
            self._channel.read_into(view)
            arrived(i)

    def close(self) -> None:
        """Close the connection. A version that has come whole is passed on until the relay is told otherwise."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._relay is not None and self._holding is not None and not self._holding.is_whole:
            self._relay.retire(self._holding)

    def _fill_chunks(self, trainer: Channel, holding: HeldVersion, arrived: Callable[[int], None]) -> None:
        source = self._source
        assert source is not None  # noqa: S101 - ``open`` was told
        unmet = 0
        for _ in range(_MOST_HOLDERS):
            if self._holder is None:
                self._take(trainer, holding, arrived, None)
                return
            unmet += 1
            try:
                holder = self._meet(source, self._holder, trainer.cancelled)
                unmet -= 1
                try:
                    ask = WeightsRequest(source.version, source.checksum, first=holding.proven)
                    _ask(holder, ask, time.monotonic() + CHUNK_S)
                    self._take(holder, holding, arrived, CHUNK_S)
                    return
                finally:
                    holder.close()
            except WeightTransferError as error:
                if trainer.cancelled.is_set():
                    raise
                where = ":".join(map(str, self._holder))
                _log.warning("version %d is taken from another holder than %s: %s", source.version, where, error)
            # One that has died cannot be met; two, and it is most likely the network between.
            again = WeightsRequest(source.version, source.checksum, None, 1, holding.proven, unmet > 1)
            self._holder = _ask(trainer, again).holder
        raise LinkError(f"{_MOST_HOLDERS} holders of version {source.version} have failed")

    def _meet(self, source: Source, holder: tuple[str, int], cancelled: threading.Event) -> Channel:
        host, port = holder
        timeout_s = min(source.timeout_s, SILENCE_S)
        return meet(replace(source, host=host, port=port, timeout_s=timeout_s), cancelled)

    def _take(
        self, channel: Channel, holding: HeldVersion, arrived: Callable[[int], None], chunk_s: float | None
    ) -> None:
        """Take chunks until all are there, each within ``chunk_s`` where that is given.

        Raises:
            WeightTransferError: Who sends them is gone, or sends something else.
        """
        chunks = holding.chunks
        deadline = None if chunk_s is None else time.monotonic() + chunk_s
        while holding.proven < len(chunks):
            (left,) = FRAME.unpack(channel.read(FRAME.size, deadline))
            while left:
                number = holding.proven
                view = holding.chunk(number) if number < len(chunks) else memoryview(b"")
                if not 0 < len(view) <= left:
                    raise WireError("a frame holds something else than whole chunks")
                channel.read_into(view, deadline)
                if chunk_hash(view) != self._hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES]:
                    raise WeightTransferError(f"chunk {number} has other bytes than the trainer has told of")
                left -= len(view)
                holding.advance()
                deadline = None if chunk_s is None else time.monotonic() + chunk_s
                bucket = chunks[number][0]
                if number + 1 == len(chunks) or chunks[number + 1][0] != bucket:
                    arrived(bucket)


def _ask(channel: Channel, request: WeightsRequest, deadline: float | None = None) -> WeightsAnswer:
    """Ask for a version; the answer, which comes by a deadline where there is one.

    Raises:
        VersionGoneError: It is refused.
        LinkError: Nobody answers.
    """
    channel.send(REQUEST.encode(request))
    answer = ANSWER.decode(channel.receive(ANSWER.limit, deadline))
    if answer.refusal:
        raise VersionGoneError(f"it was refused: {answer.refusal}")
    return answer
