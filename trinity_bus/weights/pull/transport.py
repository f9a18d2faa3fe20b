"""Asking a trainer's server for a version: the member's end of ``server``.

::

    CLOSED --open: meet, ask, read the answer--> OPEN --fill: bytes as they come--> (done) --close--> CLOSED
                        |                             |
                        +--refused, late, cancelled---+--the trainer is gone or silent: LinkError

Where bytes come over the connection, the member receives them from whom the trainer names: its *source*, which is
another member or the trainer itself. Each chunk is proven as it comes, and can be had from the relay then::

    RECEIVING --chunk, right--> RECEIVING ... --the last one--> (done)
       |                                                           the connection to the trainer stays open meanwhile
       +--the source is gone, refuses, is silent for ``SILENCE_S``, sends no chunk for ``CHUNK_S``, or a wrong one: ask
            the trainer for another source, for the chunks from here on; for the trainer itself where a second one could
            not even be met

A member that has a part of the version from a former try says how many chunks it has, and goes on from there. Where
bytes come over a link, connection and link are kept as long as trainer and epoch are the same. Failures: a version that
is gone is a ``VersionGoneError``; what the trainer itself sends wrong fails the transfer.

``Relay`` is a member's port for other members that load the same version: it passes on what it receives and has proven.

::

    CLOSED --open--> LISTENING --hold: a version begins to come--> PASSING ON --retire, hold--> ...
                                                                       |
    a member that has proven itself (``listener``) --> asks for the version, from a chunk on --> chunks (``frames``)

It listens on the address that it reaches the trainer from, and on no other. It is the ``trainer`` of a proof towards
those who come, by the secret of an announcement of the version that it passes on. It does not know their names, so all
of them together have as many connections as one member has with the trainer. Who loses one asks the trainer for another
source.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from trinity_bus import awake
from trinity_bus.weights.channel import ANSWER, REQUEST, Channel, WeightsAnswer, WeightsRequest, meet
from trinity_bus.weights.errors import LinkError, ManifestError, VersionGoneError, WeightTransferError
from trinity_bus.weights.layout import HASH_BYTES, TransferManifest, spans
from trinity_bus.weights.link import Backend, Link, gpu_of
from trinity_bus.weights.listener import Keyring, PeerListener
from trinity_bus.weights.pull.frames import HeldVersion
from trinity_bus.weights.transport import Source

if TYPE_CHECKING:
    import torch

_WAIT_S: Final = 2.0  # For a version that this member has been named as a source of, and does not know of yet


class Relay:
    """Passes one version on at a time. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._closed = False
        self._listener: PeerListener | None = None
        self._keyring = Keyring()
        self._version = (-1, "")  # whose announcements are in the keyring
        self._holding: HeldVersion | None = None

    def open(self, host: str, source: Source) -> int:
        """Listen, where it does not yet, on the interface ``host`` that leads to the trainer. Return the port."""
        with self._opening:
            if self._closed:
                raise LinkError("this member ends")
            if self._listener is not None and self._listener.address[0] != host:
                self._keyring.close()
                self._listener.close()
                self._listener = None
            if self._listener is None:
                self._keyring = Keyring()
                self._listener = PeerListener(
                    host,
                    (0,),
                    timeout_s=source.timeout_s,
                    attend=self._attend,
                    find_secret=self._keyring.find,
                    together=True,
                )
            if self._version != (source.version, source.checksum):
                self._version = (source.version, source.checksum)
                self._keyring.clear()
            # Of "incarnation/epoch/explorer", all but the explorer.
            self._keyring.add(source.prefix.rpartition("/")[0] + "/", bytes.fromhex(source.secret))
            return self._listener.address[1]

    def hold(self, holding: HeldVersion) -> None:
        """Pass this version on from now on, as it comes."""
        self.retire()
        with self._changed:
            self._holding = holding
            self._changed.notify_all()

    def retire(self, holding: HeldVersion | None = None) -> None:
        """Pass nothing on any more, or only not ``holding``. Returns when nobody reads its bytes."""
        with self._changed:
            if holding is not None and holding is not self._holding:
                return
            holding, self._holding = self._holding, None
            listener = self._listener
        if holding is not None:
            if listener is not None:
                listener.cut()
            holding.retire()

    def close(self) -> None:
        with self._opening:
            self._closed = True
            listener, self._listener = self._listener, None
        self._keyring.close()
        if listener is not None:
            listener.close()
        self.retire()

    def _attend(self, channel: Channel, who: str) -> bool:
        request = REQUEST.decode(channel.receive(REQUEST.limit))
        with self._changed:

            def is_held() -> bool:
                return self._holding is not None and self._holding.checksum == request.checksum

            awake.wait_in_thread(partial(self._changed.wait_for, is_held), _WAIT_S)
            holding = self._holding
        if holding is None or (holding.version, holding.checksum) != (request.version, request.checksum):
            channel.send(ANSWER.encode(WeightsAnswer(f"version {request.version} is not held here")))
            return False
        channel.send(ANSWER.encode(WeightsAnswer("")))
        # It is gone, or the version is: it asks the trainer for another source.
        with contextlib.suppress(LinkError):
            holding.send(channel, request.first)
            # What it has not read yet would be lost; it closes when it has all.
            channel.waits_for_more()
        return False


_log = logging.getLogger(__name__)

SILENCE_S: Final = 3.0  # After which a source counts as gone: it sends an empty frame when it has nothing new
# After which a source counts as gone that sends no whole chunk, whatever else: those behind it wait, too
CHUNK_S: Final = 10.0
_MOST_SOURCES: Final = 32  # that may fail one transfer


class PullTransport:
    """A ``WeightTransport`` from a trainer's server: over a link of a ``backend``, else over the connection."""

    def __init__(self, relay: Relay, backend: Backend | None = None, gpu: "torch.device | None" = None) -> None:
        self._relay = relay
        self._backend = backend
        self._gpu = None if backend is None else gpu_of(backend, gpu)
        self._source: Source | None = None
        self._channel: Channel | None = None
        self._link: Link | None = None
        self._holding: HeldVersion | None = None
        self._holder: tuple[str, int] | None = None
        self._has = 0

    def open(self, source: Source, cancelled: threading.Event, has: int = 0) -> TransferManifest:
        self._holding, self._has = None, has
        answer = self._asked_again(source, cancelled)
        if answer is None:
            self.close()
            self._channel = meet(source, cancelled)
            if self._backend is not None:
                self._link = Link(self._channel, self._backend, 1, self._gpu)
            answer = self._asked(self._channel, source)
        self._source = source
        manifest = TransferManifest.from_json(answer.manifest)
        source.check(manifest)
        if self._link is not None:
            self._link.open()
        else:
            chunks = spans((bucket.nbytes for bucket in manifest.buckets()), manifest.bucket_bytes)
            if len(answer.hashes) != len(chunks) * HASH_BYTES:
                raise ManifestError(f"{len(answer.hashes)} bytes of hashes came for {len(chunks)} chunks")
            self._holder = answer.holder
            self._holding = HeldVersion(source.version, source.checksum, chunks, answer.hashes)
            self._has = min(has, len(chunks))
            self._relay.hold(self._holding)
        return manifest

    @property
    def proven(self) -> int:
        return 0 if self._holding is None else self._holding.proven

    @property
    def still_uses(self) -> bool:
        return self._link is not None and self._link.still_uses

    def fill(self, buffers: "list[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        if self._link is not None:
            self._link.move(buffers, arrived)
            return
        assert self._channel is not None  # noqa: S101 - ``open`` made it
        assert self._holding is not None  # noqa: S101 - likewise
        self._holding.attach(buffers, proven=self._has)
        for bucket in _buckets(self._holding):
            arrived(bucket)
        self._fill_chunks(self._channel, self._holding, arrived)

    def end(self) -> None:
        if self._link is None:
            self.close()

    def close(self) -> None:
        """Close the connection. A version that has come whole is passed on until the relay ends that."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._holding is not None and not self._holding.is_whole:
            self._relay.retire(self._holding)
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _asked_again(self, source: Source, cancelled: threading.Event) -> WeightsAnswer | None:
        # Over the connection of the last transfer; None where there is none any more.
        channel, last = self._channel, self._source
        if channel is None or last is None or _trainer(last) != _trainer(source) or not channel.is_open():
            return None
        channel.cancelled = cancelled
        try:
            return self._asked(channel, source)
        except LinkError:
            if cancelled.is_set() or channel.is_open():
                raise
            # The trainer has given it up, as it does with one that was late.
            return None

    def _asked(self, channel: Channel, source: Source) -> WeightsAnswer:
        passes_on = self._backend is None and source.fan_out and not source.cafile
        port = self._relay.open(channel.ends[0], source) if passes_on else 0
        return _ask(channel, WeightsRequest(source.version, source.checksum, port, self._has))

    def _fill_chunks(self, trainer: Channel, holding: HeldVersion, arrived: Callable[[int], None]) -> None:
        unmet = 0
        for _ in range(_MOST_SOURCES):
            if holding.is_whole:
                break
            if self._holder is None:
                holding.receive(trainer, arrived, None)
                break
            unmet += 1
            try:
                with contextlib.closing(self._meet(self._holder, trainer.cancelled)) as holder:
                    unmet -= 1
                    ask = WeightsRequest(holding.version, holding.checksum, first=holding.proven)
                    _ask(holder, ask, awake.now() + CHUNK_S)
                    holding.receive(holder, arrived, CHUNK_S)
                    break
            except WeightTransferError as error:
                if trainer.cancelled.is_set():
                    raise
                where = ":".join(map(str, self._holder))
                _log.warning("version %d is taken from another source than %s: %s", holding.version, where, error)
            # One that has died cannot be met; two, and it is most likely the network between.
            again = WeightsRequest(holding.version, holding.checksum, first=holding.proven, alone=unmet > 1)
            self._holder = _ask(trainer, again).holder
        else:
            raise LinkError(f"{_MOST_SOURCES} sources of version {holding.version} have failed")
        # A trainer that is gone changes nothing any more.
        with contextlib.suppress(LinkError):
            whole = WeightsRequest(holding.version, holding.checksum, report=True)
            trainer.send(REQUEST.encode(whole))

    def _meet(self, holder: tuple[str, int], cancelled: threading.Event) -> Channel:
        source = self._source
        assert source is not None  # noqa: S101 - ``open`` was told
        host, port = holder
        timeout_s = min(source.timeout_s, SILENCE_S)
        return meet(replace(source, host=host, port=port, timeout_s=timeout_s), cancelled)


def _trainer(source: Source) -> tuple[str, int, str]:
    # The member's name has the incarnation and epoch.
    return source.host, source.port, source.prefix


def _buckets(holding: HeldVersion) -> range:
    # Those of which all chunks are there.
    chunks = holding.chunks
    if not holding.is_whole:
        return range(chunks[holding.proven][0])
    return range(chunks[-1][0] + 1 if chunks else 0)


def _ask(channel: Channel, request: WeightsRequest, deadline: float | None = None) -> WeightsAnswer:
    channel.send(REQUEST.encode(request))
    answer = ANSWER.decode(channel.receive(ANSWER.limit, deadline))
    if answer.refusal:
        raise VersionGoneError(f"it was refused: {answer.refusal}")
    return answer
