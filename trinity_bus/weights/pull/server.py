"""The trainer's side of pulls: a server of staged versions, for many members at once, each at its own pace.

::

    (a member has proven itself: ``listener``) --> read the request --> lease the version --> answer, bytes --> close
                                                    ^    |                     |                    |
                                                    |    +--silent: dropped    +--gone: refused     +--too slow: dropped
                                                    +--over links (``carrier``): kept for the next version

A member on another machine that passes on what it takes is told from whom: see ``fan_out``. Its connection stays open
meanwhile, so that the trainer sees how far it is, and when it is gone, and is asked there when its holder has failed;
and then for as long as the member has the version, so that those who come late can take it from there::

    request with a port --> join --> holder, or frames from here --> has all --> (takes another version, or is gone)
                              ^                |                                          --> leave
                              +-- move --------+-- it has lost its holder, or has reported that it is slow and was told
                                                   to leave it

The newest version and the one before are kept, so a member that is one version late still gets what it was named for;
beyond that it is refused, with the versions that there are, and its explorer waits for the next announcement. A member
that is slow holds its version's buffers and one thread, nobody else. A delta is made by the first who asks for it and
kept as long as both versions are. Failures: see the drawing; none reaches training or another member.
"""

import contextlib
import logging
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from opentelemetry import trace

from schemas.model_version import ModelVersion
from trinity_bus import awake
from trinity_bus.telemetry.context import parent_context
from trinity_bus.telemetry.conventions import RL_EXPLORER, RL_MODEL_VERSION, RL_WEIGHT_SYNC_EPOCH
from trinity_bus.weights.carrier import BEAT_S, HeldVersion, Sender
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.delta import Delta, encode
from trinity_bus.weights.errors import LinkError, VersionGoneError, WeightTransferError
from trinity_bus.weights.layout import HASH_BYTES, MAX_CHUNKS
from trinity_bus.weights.link.carrier import carrier_of
from trinity_bus.weights.listener import Keyring, PeerListener, member_name
from trinity_bus.weights.pull.fan_out import TRAINER, FanOut
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, Staged, Staging
from trinity_bus.weights.transport import Method
from trinity_bus.weights.wire import ANSWER, MAX_TEXT, REQUEST, WeightsAnswer, WeightsRequest

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("trinity_bus.weights")

_SPANS: Final = 4096  # members of announcements of which it is known what their spans are to say
_VERSIONS: Final = 8  # In which a machine that was slow comes behind the others. Then it has another chance.


class WeightServer:
    """Stages versions and serves them to the members of announcements. All methods may be called from any thread.

    Args:
        ports: The first free one is taken; 0 is any.
        timeout_s: Limit of a request's arrival, and of each piece that a member takes.
        retain: How many of the newest versions can be had.
        deltas: Whether to send only what has changed, where that is smaller.
        fan_out: Whether members pass on what they take; never with TLS, for which they have no certificates.
        method: ``memory``, ``gloo`` or ``nccl``. With links (the last two) all bytes are sent, and nothing is by TLS.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        ports: Sequence[int] = (0,),
        tls: ssl.SSLContext | None = None,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout_s: float = 30.0,
        retain: int = 2,
        dtype: str | None = None,
        deltas: bool = False,
        fan_out: bool = True,
        method: Literal["memory", "gloo", "nccl"] = "memory",
    ) -> None:
        self.method: Method = method
        self._carrier = carrier_of(method)
        self.staging = Staging(
            bucket_bytes=bucket_bytes,
            retain=retain,
            dtype=dtype,
            chunks=fan_out and tls is None,
        )
        self._deltas: _Deltas | None = _Deltas() if deltas else None
        self._silence_s = max(1, int(timeout_s))
        self._trees = _Trees(self._silence_s)
        self._told = threading.Lock()
        # By member and version, what the span of sending it says
        self._spans: OrderedDict[tuple[str, int], tuple[dict[str, str | int], str | None]] = OrderedDict()
        self._keyring = Keyring()
        self._listener = PeerListener(
            host, ports, timeout_s=timeout_s, attend=self._attend, secrets=self._keyring, tls=tls
        )

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> str:
        """Make a version one that can be had. Return its checksum. See ``Staging.stage``."""
        checksum = self.staging.stage(version, named_tensors, folder).checksum
        if self._deltas is not None:
            self._deltas.forget(checksum)
        staged = self.staging.find(checksum)
        if staged is not None and len(staged.chunk_hashes) > MAX_CHUNKS * HASH_BYTES:
            _log.warning(
                "version %d has more than %d chunks: the trainer sends it to each explorer itself, and nobody passes "
                "it on; a larger trainer.bucket_mib makes fewer", version, MAX_CHUNKS
            )  # fmt: skip
        return checksum

    def durable(self, version: int) -> None:
        self.staging.open(version)

    def keep(self, version: int) -> None:
        self.staging.keep(version)

    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        """Let the members of an announcement in. ``traceparent``: of the spans of what is sent to them."""
        with self._told:
            for member in announced.members:
                attributes: dict[str, str | int] = {
                    RL_EXPLORER: member.explorer,
                    RL_MODEL_VERSION: announced.version,
                    RL_WEIGHT_SYNC_EPOCH: announced.epoch,
                }
                self._spans[member_name(announced, member.explorer), announced.version] = attributes, traceparent
            while len(self._spans) > _SPANS:
                self._spans.popitem(last=False)
        self._keyring.add(announced)

    def close(self) -> None:
        self._listener.close()

    def _attend(self, channel: Channel, who: str) -> bool:
        request: WeightsRequest | None = REQUEST.decode(channel.receive(REQUEST.limit))
        with contextlib.closing(self._carrier.sender(channel)) as sender:
            while request is not None:
                version = request.version
                with self._told:
                    attributes, parent = self._spans.get((who, version), ({}, None))
                with _tracer.start_as_current_span(
                    "send weights", context=parent_context(parent), attributes=attributes
                ) as span:
                    try:
                        request = self._answer(channel, sender, who, request)
                    except (WeightTransferError, RuntimeError, OSError) as error:
                        span.set_status(trace.StatusCode.ERROR, str(error))
                        _log.warning("version %d was not sent to %s: %s", version, who, error)
                        return False
                if request is None and self._carrier.keeps:
                    request = self._next_version(channel)
        return False

    def _next_version(self, channel: Channel) -> WeightsRequest | None:
        # Waits, however long; None where it asks for no other version.
        with contextlib.suppress(LinkError):
            channel.notice_silence(self._silence_s)
            channel.wait()
            if channel.waits_for_more():
                return REQUEST.decode(channel.receive(REQUEST.limit))
        return None

    def _answer(self, channel: Channel, sender: Sender, who: str, request: WeightsRequest) -> WeightsRequest | None:
        # Sends what is asked for, or who has it, or why not. Returns what the member asks for next. VersionGoneError:
        # it was refused; LinkError: it is gone or too slow.
        try:
            with self._lease(request, sender) as staged:
                manifest, hashes = staged.manifest.to_json(), staged.chunk_hashes
                delta = self._delta(staged, request.held)
                here, there = channel.ends
                # A member on this very machine costs no card anything, and would hash all chunks for nothing.
                passes_on = request.port and here != there and 0 < len(hashes) <= MAX_CHUNKS * HASH_BYTES
                if delta is not None or not passes_on:
                    changes = None if delta is None else delta.changes
                    channel.send(ANSWER.encode(WeightsAnswer("", manifest, changes)))
                    sender.whole(self._carrier.views(staged.buffers) if delta is None else delta.payload)
                    return None
            with self._trees.joined(channel, request, staged) as place:
                answer = WeightsAnswer("", manifest, None, hashes, reports=True)
                return self._fan_out(channel, sender, place, request, answer)
        except VersionGoneError as error:
            channel.send(ANSWER.encode(WeightsAnswer(str(error)[:MAX_TEXT])))
            raise

    @contextlib.contextmanager
    def _lease(self, request: WeightsRequest, sender: Sender) -> Iterator[Staged]:
        # What may still be read of it later is not used again.
        with self.staging.lease(request.version, request.checksum) as staged:
            try:
                yield staged
            finally:
                staged.spoiled = staged.spoiled or sender.still_reads

    def _fan_out(
        self, channel: Channel, sender: Sender, place: "_Joined", request: WeightsRequest, answer: WeightsAnswer
    ) -> WeightsRequest | None:
        # Sends chunks, or names a holder, until the member has all or is gone; returns and raises as ``_answer``.
        while True:
            holder = place.holder()
            with contextlib.ExitStack() as leased:
                if holder is None:
                    staged = leased.enter_context(self._lease(request, sender))
                    channel.send(ANSWER.encode(answer))
                    chunks = staged.chunks()
                    holding = HeldVersion(request.version, request.checksum, chunks)
                    holding.attach(self._carrier.views(staged.buffers), proven=len(chunks))
                    if sender.chunks(holding, request.first, place.goes_on):
                        place.report(len(chunks))
                else:
                    channel.send(ANSWER.encode(msgspec.structs.replace(answer, holder=holder)))
            again = place.next_request(channel)
            if again is None and not place.is_whole:
                raise LinkError("it is gone, and has not said that it has all")
            if again is None or place.is_whole:
                return again
            # It has been told what there is to be said about the version.
            request, answer = again, WeightsAnswer("")
            place.move(alone=request.alone)

    def _delta(self, staged: Staged, held: str | None) -> Delta | None:
        base = None if self._deltas is None or held is None else self.staging.find(held)
        if self._deltas is None or base is None or base is staged:
            return None
        try:
            with self.staging.lease(base.manifest.version, base.manifest.checksum):
                return self._deltas.between(base, staged)
        except VersionGoneError:
            # Retired between the two calls: all of it is sent.
            return None


class _Deltas:
    """Deltas to the newest version, each made once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], Delta | None] = {}

    def between(self, base: Staged, target: Staged) -> Delta | None:
        """Return what turns one into the other; None where all of it is smaller, or they are of different models."""
        if base.layout != target.layout:
            return None
        key = (base.manifest.checksum, target.manifest.checksum)
        # Whoever else wants the same one waits for it.
        with self._lock:
            if key not in self._made:
                self._made[key] = encode(target.layout, base.buffers, target.buffers, target.nbytes)
            return self._made[key]

    def forget(self, newest: str) -> None:
        with self._lock:
            self._made = {key: delta for key, delta in self._made.items() if key[1] == newest}


@dataclass(slots=True)
class _Joined:
    trees: "_Trees"
    key: "_Key"
    number: int
    told: int = TRAINER  # the holder that it knows of
    reported_at: float = 0.0
    is_whole: bool = False  # it has said that it has all

    def holder(self) -> tuple[str, int] | None:
        with self.trees.locked(self.key) as tree:
            self.told = tree.holder(self.number)
            return tree.address(self.told)

    def report(self, proven: int) -> bool:
        # Returns whether it stays with the holder that it knows of.
        self.reported_at = awake.now()
        with self.trees.locked(self.key) as tree:
            tree.report(self.number, proven, self.reported_at)
            self.is_whole = tree.is_whole(self.number)
            return self.is_whole or tree.holder(self.number) == self.told

    def goes_on(self, sent: int) -> bool:
        # As ``report``, with what it was sent.
        return awake.now() < self.reported_at + BEAT_S or self.report(sent)

    def move(self, *, alone: bool) -> None:
        # Its holder has failed, unless there is another one already.
        with self.trees.locked(self.key) as tree:
            if alone or tree.holder(self.number) == self.told:
                tree.move(self.number, alone=alone)

    def next_request(self, channel: Channel) -> WeightsRequest | None:
        # Takes reports until the member wants another holder; None where it is gone, or takes another version.
        told = False
        while True:
            if self.is_whole:
                # It has nothing more to say, for however long it has the version.
                with contextlib.suppress(LinkError):
                    channel.notice_silence(self.trees.silence_s)
                    channel.wait()
            if not channel.waits_for_more():
                return None
            request = REQUEST.decode(channel.receive(REQUEST.limit))
            if not request.report:
                return request
            if not self.report(request.first) and not told:
                channel.send(ANSWER.encode(WeightsAnswer("", leave=True)))
                told = True


type _Key = tuple[int, str]  # number and checksum of a version


class _Trees:
    """Trees of receivers, one for each version that somebody takes or has, and what the last ones have shown.

    ``silence_s``: after which a machine that has a version, and says nothing more, counts as gone.
    """

    def __init__(self, silence_s: int) -> None:
        self.silence_s = silence_s
        self._lock = threading.Lock()
        self._trees: dict[_Key, FanOut] = {}
        self._slow: dict[_Key, set[str]] = {}  # of the last versions, the newest last
        self._usual = 0.0

    @contextlib.contextmanager
    def joined(self, channel: Channel, request: WeightsRequest, staged: Staged) -> Iterator[_Joined]:
        # A member has its place for as long as its connection is served.
        key = (request.version, request.checksum)
        here, there = channel.ends
        with self._lock:
            tree = self._trees.get(key)
            if tree is None:
                tree = FanOut(here, staged.chunks(), slow=set().union(*self._slow.values()), usual=self._usual)
                self._trees[key] = tree
            place = _Joined(self, key, tree.join(there, request.port, request.first))
            place.is_whole = tree.is_whole(place.number)
        try:
            yield place
        finally:
            with self.locked(key):
                tree.leave(place.number)
            with self._lock:
                if not tree and self._trees.get(key) is tree:
                    del self._trees[key]

    @contextlib.contextmanager
    def locked(self, key: _Key) -> Iterator[FanOut]:
        # What a tree shows is kept when nobody takes any more.
        with self._lock:
            tree = self._trees[key]
            was_settled = tree.is_settled
            yield tree
            if tree.is_settled and not was_settled:
                self._remember(key, tree)

    def _remember(self, key: _Key, tree: FanOut) -> None:
        self._usual = tree.rate() or self._usual
        known = self._slow.pop(key, set())
        slow = self._slow[key] = known | tree.culprits()
        while len(self._slow) > _VERSIONS:
            del self._slow[next(iter(self._slow))]
        for machine in sorted(slow - known):
            _log.warning(
                "%s was slow to take or to pass on weights: it comes behind the others for %d versions",
                machine,
                _VERSIONS,
            )
