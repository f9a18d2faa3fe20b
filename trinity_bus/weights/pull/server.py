"""The trainer's side of transfers: a server of staged versions, for many members at once, each at its own pace.

::

    (a member has proven itself: ``listener``) --> read the request --> lease the version --> answer, bytes --> close
                                                    ^    |                     |                    |
                                                    |    +--silent: dropped    +--gone: refused     +--too slow: dropped
                                                    +--over links (``link``): kept for the next version

With ``memory``, a member on another machine that passes on what it receives is told from whom it receives, see
``fan_out``; all others receive it from here. The connection stays open until the member has all, so that the trainer
sees when it is gone, and is asked there for another source when one has failed::

    request --> join --> source, or frames from here --> it has all, or is gone --> leave
                              ^                |
                              +-- move --------+-- its source has failed

The newest version and the one before are kept. A member that is slow holds its version's buffers and one thread.
Failures: see the drawing; none reaches training or another member.
"""

import contextlib
import logging
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from opentelemetry import trace

from schemas.model_version import ModelVersion
from trinity_bus.telemetry.conventions import RL_EXPLORER, RL_MODEL_VERSION, RL_WEIGHT_SYNC_EPOCH
from trinity_bus.telemetry.spans import parent_context
from trinity_bus.weights.channel import ANSWER, MAX_TEXT, REQUEST, Channel, WeightsAnswer, WeightsRequest
from trinity_bus.weights.errors import LinkError, VersionGoneError, WeightTransferError
from trinity_bus.weights.layout import HASH_BYTES
from trinity_bus.weights.link import Backend, Link, gpu_of
from trinity_bus.weights.listener import Keyring, PeerListener
from trinity_bus.weights.pull.fan_out import FanOut
from trinity_bus.weights.pull.frames import HeldVersion
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, Staging
from trinity_bus.weights.transport import Method

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("trinity_bus.weights")

_PARENTS: Final = 64  # announcements of which it is known what the spans of their transfers belong to


class WeightServer:
    """Stages versions and serves them to the members of announcements. All methods may be called from any thread.

    It listens on the first free one of ``ports``; 0 is any. ``timeout_s`` limits a request's arrival, and each piece
    that a member takes. With ``fan_out`` members pass on what they receive by ``memory``, but never with TLS, for which
    they have no certificates. Links (``gloo``, ``nccl``) are never by TLS.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        ports: Sequence[int] = (0,),
        tls: ssl.SSLContext | None = None,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout_s: float = 30.0,
        dtype: str | None = None,
        fan_out: bool = True,
        method: Literal["memory", "gloo", "nccl"] = "memory",
    ) -> None:
        self.method: Method = method
        self._backend: Backend | None = None if method == "memory" else method
        self._gpu = None if method == "memory" else gpu_of(method, None)
        self._fans_out = fan_out and tls is None
        self.staging = Staging(bucket_bytes=bucket_bytes, retain=2, dtype=dtype, chunks=method == "memory")
        self._silence_s = max(1, int(timeout_s))
        self._lock = threading.Lock()
        self._trees: dict[tuple[int, str], FanOut] = {}  # by number and checksum of a version that somebody receives
        # Of the spans of sending a version, by the beginning of its members' names, and the version
        self._parents: OrderedDict[tuple[str, int], str | None] = OrderedDict()
        self._keyring = Keyring()
        self._listener = PeerListener(
            host, ports, timeout_s=timeout_s, attend=self._attend, find_secret=self._keyring.find, tls=tls
        )
        self.address = self._listener.address

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> str:
        """Make a version one that can be had. Return its checksum. See ``Staging.stage``."""
        return self.staging.stage(version, named_tensors, folder).checksum

    def durable(self, version: int) -> None:
        self.staging.open(version)

    def keep(self, version: int) -> None:
        self.staging.keep(version)

    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        """Let the members of an announcement in. ``traceparent``: of the spans of what is sent to them."""
        prefix = f"{announced.trainer_incarnation}/{announced.epoch}/"
        with self._lock:
            self._parents[prefix, announced.version] = traceparent
            while len(self._parents) > _PARENTS:
                self._parents.popitem(last=False)
        if announced.secret is not None:
            explorers = [member.explorer for member in announced.members]
            self._keyring.add(prefix, bytes.fromhex(announced.secret), explorers)

    def close(self) -> None:
        self._keyring.close()
        self._listener.close()

    def _attend(self, channel: Channel, who: str) -> bool:
        request: WeightsRequest | None = REQUEST.decode(channel.receive(REQUEST.limit))
        with contextlib.ExitStack() as at_end:
            link = None if self._backend is None else Link(channel, self._backend, 0, self._gpu)
            if link is not None:
                at_end.callback(link.close)
            while request is not None:
                with self._span(who, request.version) as span:
                    try:
                        self._answer(channel, link, request)
                    except (WeightTransferError, RuntimeError, OSError) as error:
                        span.set_status(trace.StatusCode.ERROR, str(error))
                        _log.warning("version %d was not sent to %s: %s", request.version, who, error)
                        return False
                request = None if link is None else self._next_request(channel)
        return False

    def _span(self, who: str, version: int) -> contextlib.AbstractContextManager[trace.Span]:
        life, epoch, explorer = who.split("/", 2)
        key = (f"{life}/{epoch}/", version)
        with self._lock:
            known, parent = key in self._parents, self._parents.get(key)
        attributes: dict[str, str | int] = {}
        # Nothing is told that a member has only said.
        if known:
            attributes = {RL_EXPLORER: explorer, RL_MODEL_VERSION: version, RL_WEIGHT_SYNC_EPOCH: int(epoch)}
        return _tracer.start_as_current_span("send weights", context=parent_context(parent), attributes=attributes)

    def _next_request(self, channel: Channel) -> WeightsRequest | None:
        # Waits, however long; None where the member is gone.
        with contextlib.suppress(LinkError):
            channel.notice_silence(self._silence_s)
            channel.wait()
            return REQUEST.decode(channel.receive(REQUEST.limit))
        return None

    def _answer(self, channel: Channel, link: Link | None, request: WeightsRequest) -> None:
        # Sends what is asked for, or who has it, or why not. VersionGoneError: it was refused; LinkError: the member is
        # gone or too slow.
        try:
            with self.staging.lease(request.version, request.checksum) as staged:
                answer = WeightsAnswer("", staged.manifest.to_json(), staged.chunk_hashes)
                if link is not None:
                    channel.send(ANSWER.encode(answer))
                    try:
                        link.move(staged.buffers, lambda _: None)
                    finally:
                        # What may still be read later is not used again.
                        staged.spoiled = staged.spoiled or link.still_uses
                    return
            with self._joined(channel, request, len(answer.hashes) // HASH_BYTES) as (tree, number):
                self._fan_out(channel, tree, number, request, answer)
        except VersionGoneError as error:
            channel.send(ANSWER.encode(WeightsAnswer(str(error)[:MAX_TEXT])))
            raise

    @contextlib.contextmanager
    def _joined(self, channel: Channel, request: WeightsRequest, chunks: int) -> Iterator[tuple[FanOut, int]]:
        # A member has its place for as long as its connection is served.
        key = (request.version, request.checksum)
        here, there = channel.ends
        # One on this very machine costs no card anything.
        port = request.port if self._fans_out and here != there else 0
        with self._lock:
            tree = self._trees.setdefault(key, FanOut(here, chunks))
            number = tree.join(there, port, request.first)
        try:
            yield tree, number
        finally:
            with self._lock:
                tree.leave(number)
                if not tree:
                    del self._trees[key]

    def _fan_out(
        self, channel: Channel, tree: FanOut, number: int, request: WeightsRequest, answer: WeightsAnswer
    ) -> None:
        # Sends chunks, or names a source, until the member has all; raises as ``_answer``.
        while True:
            with self._lock:
                source = tree.source(number)
            if source is None:
                with self.staging.lease(request.version, request.checksum) as staged:
                    channel.send(ANSWER.encode(answer))
                    chunks = staged.chunks()
                    holding = HeldVersion(request.version, request.checksum, chunks)
                    holding.attach(staged.buffers, proven=len(chunks))
                    holding.send(channel, request.first)
            else:
                channel.send(ANSWER.encode(msgspec.structs.replace(answer, holder=source)))
            again = self._next_request(channel)
            if again is None:
                raise LinkError("it is gone, and has not said that it has all")
            if again.report:
                return
            # It has been told what there is to be said about the version.
            request, answer = again, WeightsAnswer("")
            with self._lock:
                tree.move(number, alone=request.alone)
