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
    |     the trainer for another holder, for the chunks from here on; for the trainer itself, where a second one
    |     could not even be met
    +--the trainer, to whom it reports now and then how far it is, says that there is a better one: likewise

A member that has begun to take the same version before, in whichever epoch and from whichever trainer, says how many
chunks it has, and goes on from there; with all of them, nothing comes but the hashes.

One connection for each version. Failures: a version that is gone is a ``VersionGoneError``; the explorer answers that
it did not get it and is named again for the newest. Every wait ends with the time limit, and within moments of being
cancelled. What the trainer itself sends wrong fails the transfer.
"""

import contextlib
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
from trinity_bus.weights.memory.held_version import BEAT_S, FRAME, LEAVE, HeldVersion
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
_LOOK_S: Final = 0.1
"""Between two looks whether the trainer has said something."""
_MOST_HOLDERS: Final = 32
"""That may fail one transfer."""


class MemoryTransport:
    """A ``WeightTransport`` from a trainer's server. It is used for one version.

    Args:
        relay: Where this member passes on what it takes; unset: it does not.
        has: How many chunks of the version are in the buffers that are to be filled, from the first on, proven.
    """

    device = "cpu"

    def __init__(self, relay: Relay | None = None, has: int = 0) -> None:
        self._relay = relay
        self._has = 0 if relay is None else has
        self._source: Source | None = None
        self._channel: Channel | None = None
        self._holding: HeldVersion | None = None
        self._hashes = b""
        self._holder: tuple[str, int] | None = None
        self._reports = False

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
        answer = _ask(channel, WeightsRequest(source.version, source.checksum, held, port, self._has))
        manifest = TransferManifest.from_json(answer.manifest)
        source.check(manifest)
        if answer.hashes and self._relay is not None:
            chunks = spans((bucket.nbytes for bucket in manifest.buckets()), manifest.bucket_bytes)
            if len(answer.hashes) != len(chunks) * HASH_BYTES:
                raise ManifestError(f"{len(answer.hashes)} bytes of hashes came for {len(chunks)} chunks")
            self._hashes, self._holder, self._reports = answer.hashes, answer.holder, answer.reports
            self._holding = HeldVersion(source.version, source.checksum, chunks)
            self._relay.hold(self._holding)
            self._has = min(self._has, len(chunks))
            return Offer(manifest, kept=sum(end - start for _, start, end in chunks[: self._has]))
        self._has = 0
        return Offer(manifest, answer.changes)

    @property
    def proven(self) -> int:
        """How many chunks are in the buffers, from the first on, proven, since ``fill`` was called."""
        return 0 if self._holding is None else self._holding.proven

    def fill(self, buffers: "Sequence[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        """See ``WeightTransport``."""
        assert self._channel is not None  # noqa: S101 - ``open`` made it
        views = [memoryview(buffer.numpy()) for buffer in buffers]
        if self._holding is not None:
            self._holding.attach(views, proven=self._has)
            for bucket in _buckets(self._holding):
                arrived(bucket)
            self._fill_chunks(self._channel, self._holding, arrived)
            return
        for i, view in enumerate(views):
            self._channel.read_into(view)
            arrived(i)

    def close(self) -> None:
        """Close the connection. A version that has come whole is passed on until the relay is told otherwise."""
        channel, self._channel = self._channel, None
        if self._relay is not None and self._holding is not None:
            if self._holding.is_whole and channel is not None:
                self._relay.keep(self._holding, channel)
                return
            if not self._holding.is_whole:
                self._relay.retire(self._holding)
        if channel is not None:
            channel.close()

    def _fill_chunks(self, trainer: Channel, holding: HeldVersion, arrived: Callable[[int], None]) -> None:
        source = self._source
        assert source is not None  # noqa: S101 - ``open`` was told
        unmet = 0
        reports = _Reports(trainer, holding) if self._reports else None
        if holding.is_whole:
            return
        for _ in range(_MOST_HOLDERS):
            if self._holder is None:
                if self._take(trainer, holding, arrived, None):
                    return
                self._holder = _ask(trainer, _again(holding)).holder
                continue
            unmet += 1
            try:
                holder = self._meet(source, self._holder, trainer.cancelled)
                unmet -= 1
                try:
                    ask = WeightsRequest(source.version, source.checksum, first=holding.proven)
                    _ask(holder, ask, time.monotonic() + CHUNK_S)
                    if reports is not None:
                        holder.watch = reports.look
                    if self._take(holder, holding, arrived, CHUNK_S):
                        if reports is not None:
                            reports.send()
                        return
                finally:
                    holder.close()
            except WeightTransferError as error:
                if trainer.cancelled.is_set():
                    raise
                where = ":".join(map(str, self._holder))
                _log.warning("version %d is taken from another holder than %s: %s", source.version, where, error)
            # One that has died cannot be met; two, and it is most likely the network between.
            self._holder = _ask(trainer, _again(holding, alone=unmet > 1)).holder
        raise LinkError(f"{_MOST_HOLDERS} holders of version {source.version} have failed")

    def _meet(self, source: Source, holder: tuple[str, int], cancelled: threading.Event) -> Channel:
        host, port = holder
        timeout_s = min(source.timeout_s, SILENCE_S)
        return meet(replace(source, host=host, port=port, timeout_s=timeout_s), cancelled)

    def _take(
        self, channel: Channel, holding: HeldVersion, arrived: Callable[[int], None], chunk_s: float | None
    ) -> bool:
        """Take chunks, each within ``chunk_s`` where that is given. Return whether all are there; else, others send.

        Raises:
            WeightTransferError: Who sends them is gone, or sends something else.
        """
        chunks = holding.chunks
        deadline = None if chunk_s is None else time.monotonic() + chunk_s
        while holding.proven < len(chunks):
            (left,) = FRAME.unpack(channel.read(FRAME.size, deadline))
            if left == LEAVE:
                return False
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
        return True


class _Reports:
    """What a member says to the trainer while it takes chunks from another member, and hears from it.

    Args:
        trainer: Where nothing else is said meanwhile.
        holding: What it has.
    """

    def __init__(self, trainer: Channel, holding: HeldVersion) -> None:
        self._trainer = trainer
        self._holding = holding
        self._look_at = self._send_at = 0.0

    def look(self) -> None:
        """Report, and see what the trainer says, where it is time.

        Raises:
            LinkError: There is a better holder.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        if now >= self._send_at:
            self._send_at = now + BEAT_S
            self.send()
        if self._trainer.has_more() and ANSWER.decode(self._trainer.receive(ANSWER.limit)).leave:
            raise LinkError("the trainer knows a better one")

    def send(self) -> None:
        """Report. A trainer that is gone is no reason to take no more."""
        with contextlib.suppress(LinkError):
            self._trainer.send(REQUEST.encode(_again(self._holding, report=True)))


def _buckets(holding: HeldVersion) -> range:
    """Return the buckets of which all chunks are there."""
    chunks = holding.chunks
    return range(chunks[-1][0] + 1 if holding.is_whole else chunks[holding.proven][0])


def _again(holding: HeldVersion, *, alone: bool = False, report: bool = False) -> WeightsRequest:
    """Return what a member says of the rest of a version that it has begun to take."""
    return WeightsRequest(holding.version, holding.checksum, None, 1, holding.proven, alone, report)


def _ask(channel: Channel, request: WeightsRequest, deadline: float | None = None) -> WeightsAnswer:
    """Ask for a version; the answer, which comes by a deadline where there is one.

    Raises:
        VersionGoneError: It is refused.
        LinkError: Nobody answers.
    """
    channel.send(REQUEST.encode(request))
    answer = ANSWER.decode(channel.receive(ANSWER.limit, deadline))
    while answer.leave:
        # Said before it had read the request, which says the same.
        answer = ANSWER.decode(channel.receive(ANSWER.limit, deadline))
    if answer.refusal:
        raise VersionGoneError(f"it was refused: {answer.refusal}")
    return answer
