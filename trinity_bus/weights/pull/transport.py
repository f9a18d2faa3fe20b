"""Asking a trainer's server for a version: the member's end of ``server``.

::

    CLOSED --open: meet, ask, read the answer--> OPEN --fill: bytes as they come--> (done) --close--> CLOSED
                        |                             |
                        +--refused, late, cancelled---+--the trainer is gone or silent: LinkError

With a ``relay``, the member passes on what it takes, and takes it from whom the trainer names: its *holder*, which is
another member of the announcement or the trainer itself. Each chunk is proven as it comes, and passed on::

    TAKING --chunk, right--> TAKING ... --the last one--> (done)
       |                                                           the connection to the trainer stays open meanwhile
       +--the holder is gone, refuses, is silent for ``SILENCE_S``, sends no chunk for ``CHUNK_S``, or a wrong one: ask
       |    |     the trainer for another holder, for the chunks from here on; for the trainer itself where a second one
       |    |     could not even be met
       +--the trainer, to whom it reports now and then how far it is, says that there is a better one: likewise

A member that has begun to take the same version before says how many chunks it has, and goes on from there; with all of
them, nothing comes but the hashes. One connection for each version; where bytes come over links (``carrier``), it and
the link are kept as long as trainer and epoch are the same. Failures: a version that is gone is a ``VersionGoneError``;
the explorer answers that it did not get it and is named again for the newest. What the trainer itself sends wrong fails
the transfer.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trinity_bus import awake
from trinity_bus.weights.carrier import BEAT_S, Carrier, FrameCarrier, HeldVersion, Taker
from trinity_bus.weights.channel import Channel, meet
from trinity_bus.weights.errors import LinkError, ManifestError, VersionGoneError, WeightTransferError
from trinity_bus.weights.layout import HASH_BYTES, TransferManifest, spans
from trinity_bus.weights.pull.relay import Relay
from trinity_bus.weights.transport import Offer, Source
from trinity_bus.weights.wire import ANSWER, REQUEST, WeightsAnswer, WeightsRequest

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

SILENCE_S: Final = 3.0  # After which a holder counts as gone: it sends an empty frame when it has nothing new
# After which a holder counts as gone that sends no whole chunk, whatever else: those behind it wait, too
CHUNK_S: Final = 10.0
_LOOK_S: Final = 0.1  # between two looks whether the trainer has said something
_MOST_HOLDERS: Final = 32  # that may fail one transfer


class PullTransport:
    """A ``WeightTransport`` from a trainer's server. One that keeps its connection is used for many versions.

    ``has``: how many chunks of the version are in the buffers that are to be filled, from the first on, proven.
    """

    def __init__(self, relay: Relay | None = None, carrier: Carrier | None = None, has: int = 0) -> None:
        self._own_relay = relay
        self._relay: Relay | None = None
        self._carrier = FrameCarrier() if carrier is None else carrier
        self._source: Source | None = None
        self._channel: Channel | None = None
        self._taker: Taker | None = None  # what comes from the trainer itself
        self._holding: HeldVersion | None = None
        self._holder: tuple[str, int] | None = None
        self._reports = False
        self._has = has

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        self._relay = self._own_relay if source.fan_out and not source.cafile else None
        self._holding = None
        answer = self._asked_again(source, held, cancelled)
        if answer is None:
            self.close()
            self._channel = meet(source, cancelled)
            self._taker = self._carrier.taker(self._channel)
            answer = self._asked(self._channel, source, held)
        self._source = source
        assert self._taker is not None  # noqa: S101 - comes with the channel
        manifest = TransferManifest.from_json(answer.manifest)
        source.check(manifest)
        if answer.hashes and self._relay is not None:
            chunks = spans((bucket.nbytes for bucket in manifest.buckets()), manifest.bucket_bytes)
            if len(answer.hashes) != len(chunks) * HASH_BYTES:
                raise ManifestError(f"{len(answer.hashes)} bytes of hashes came for {len(chunks)} chunks")
            self._holder, self._reports = answer.holder, answer.reports
            self._holding = HeldVersion(source.version, source.checksum, chunks, answer.hashes)
            self._relay.hold(self._holding, self._carrier)
            self._has = min(self._has, len(chunks))
            return Offer(manifest, kept=sum(end - start for _, start, end in chunks[: self._has]))
        self._taker.meet(chunks=False)
        return Offer(manifest, answer.changes)

    @property
    def proven(self) -> int:
        return 0 if self._holding is None else self._holding.proven

    def fill(self, buffers: "list[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        assert self._channel is not None and self._taker is not None  # noqa: S101, PT018 - ``open`` made them
        if self._holding is None:
            self._taker.whole(buffers, arrived)
            return
        self._holding.attach(self._carrier.views(buffers), proven=self._has)
        for bucket in _buckets(self._holding):
            arrived(bucket)
        self._fill_chunks(self._channel, self._taker, self._holding, buffers, arrived)

    def close(self) -> None:
        """Close the connection. A version that has come whole is passed on until the relay ends that."""
        if self._taker is not None:
            self._taker.close()
            self._taker = None
        channel, self._channel = self._channel, None
        if self._relay is not None and self._holding is not None:
            if self._holding.is_whole and channel is not None:
                self._relay.keep(self._holding, channel)
                return
            if not self._holding.is_whole:
                self._relay.retire(self._holding)
        if channel is not None:
            channel.close()

    def _asked_again(self, source: Source, held: str | None, cancelled: threading.Event) -> WeightsAnswer | None:
        # Over the connection of the last transfer; None where there is none any more.
        channel, last = self._channel, self._source
        if channel is None or last is None or _trainer(last) != _trainer(source) or not channel.is_open():
            return None
        channel.cancelled = cancelled
        try:
            return self._asked(channel, source, held)
        except LinkError:
            if cancelled.is_set() or channel.is_open():
                raise
            # The trainer has given it up, as it does with one that was late.
            return None

    def _asked(self, channel: Channel, source: Source, held: str | None) -> WeightsAnswer:
        port = 0 if self._relay is None else self._relay.open(channel.ends[0], source)
        return _ask(channel, WeightsRequest(source.version, source.checksum, held, port, self._has if port else 0))

    def _fill_chunks(
        self,
        trainer: Channel,
        from_trainer: Taker,
        holding: HeldVersion,
        buffers: "list[torch.Tensor]",
        arrived: Callable[[int], None],
    ) -> None:
        unmet = 0
        reports = _Reports(trainer, holding)
        if holding.is_whole:
            return
        for _ in range(_MOST_HOLDERS):
            if self._holder is None:
                if from_trainer.chunks(holding, buffers, arrived, None):
                    reports.send()
                    return
                self._holder = _ask(trainer, _again(holding)).holder
                continue
            unmet += 1
            try:
                with contextlib.ExitStack() as met:
                    holder = met.enter_context(contextlib.closing(self._meet(self._holder, trainer.cancelled)))
                    taker = met.enter_context(contextlib.closing(self._carrier.taker(holder)))
                    unmet -= 1
                    ask = WeightsRequest(holding.version, holding.checksum, first=holding.proven)
                    _ask(holder, ask, awake.now() + CHUNK_S)
                    # The ports of a link may be barred, where that of the holder is not.
                    unmet += 1
                    taker.meet(chunks=True)
                    unmet -= 1
                    if self._reports:
                        holder.watch = reports.look
                    if taker.chunks(holding, buffers, arrived, CHUNK_S):
                        reports.send()
                        return
            except WeightTransferError as error:
                if trainer.cancelled.is_set():
                    raise
                where = ":".join(map(str, self._holder))
                _log.warning("version %d is taken from another holder than %s: %s", holding.version, where, error)
            # One that has died cannot be met; two, and it is most likely the network between.
            self._holder = _ask(trainer, _again(holding, alone=unmet > 1)).holder
        raise LinkError(f"{_MOST_HOLDERS} holders of version {holding.version} have failed")

    def _meet(self, holder: tuple[str, int], cancelled: threading.Event) -> Channel:
        source = self._source
        assert source is not None  # noqa: S101 - ``open`` was told
        host, port = holder
        timeout_s = min(source.timeout_s, SILENCE_S)
        return meet(replace(source, host=host, port=port, timeout_s=timeout_s), cancelled)


class _Reports:
    """What a member says to the trainer while it takes chunks from another member, and hears from it."""

    def __init__(self, trainer: Channel, holding: HeldVersion) -> None:
        self._trainer = trainer
        self._holding = holding
        self._look_at = self._send_at = 0.0

    def look(self) -> None:
        """Report, and see what the trainer says, where it is time; LinkError where there is a better holder."""
        now = awake.now()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        if now >= self._send_at:
            self._send_at = now + BEAT_S
            self.send()
        while self._trainer.has_more():
            if ANSWER.decode(self._trainer.receive(ANSWER.limit)).leave:
                raise LinkError("the trainer knows a better one")

    def send(self) -> None:
        """Report. A trainer that is gone is no reason to take no more."""
        with contextlib.suppress(LinkError):
            self._trainer.send(REQUEST.encode(_again(self._holding, report=True)))


def _trainer(source: Source) -> tuple[str, int, str]:
    # The member's name has the incarnation and epoch.
    return source.host, source.port, source.prefix


def _buckets(holding: HeldVersion) -> range:
    # Those of which all chunks are there.
    chunks = holding.chunks
    return range(chunks[-1][0] + 1 if holding.is_whole else chunks[holding.proven][0])


def _again(holding: HeldVersion, *, alone: bool = False, report: bool = False) -> WeightsRequest:
    return WeightsRequest(holding.version, holding.checksum, None, 1, holding.proven, alone, report)


def _ask(channel: Channel, request: WeightsRequest, deadline: float | None = None) -> WeightsAnswer:
    channel.send(REQUEST.encode(request))
    answer = ANSWER.decode(channel.receive(ANSWER.limit, deadline))
    while answer.is_aside:
        # Said before it had read the request.
        answer = ANSWER.decode(channel.receive(ANSWER.limit, deadline))
    if answer.refusal:
        raise VersionGoneError(f"it was refused: {answer.refusal}")
    return answer
