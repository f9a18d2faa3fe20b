"""The trainer's side of transfers over links: a staged version goes to each member over a link of its own.

Staged versions lie in host or, with NCCL, device memory. ``serve`` runs one thread per member:

::

    the member comes (``listener``), or its link of this epoch is open
        --> send it the manifest --> open the link, where there is none --> bucket after bucket --> served
               |                              |                                    |
               +------------------------------+-- deadline, death, newer epoch ----+-> dropped, with a reason

Failures: a member that is dead, slow or gone is dropped, and the others never wait for it. Its link is closed, and the
buffers that its pending operations still read are given up rather than used again. The coordinator hears of it from
the member's silence or from its own ``WeightsSynced``, and writes a new epoch; ``serve`` for that epoch ends an attempt
that still runs for the same member.
"""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opentelemetry import trace

from schemas.model_version import Member, ModelVersion
from trinity_bus.telemetry.context import parent_context
from trinity_bus.telemetry.conventions import RL_EXPLORER, RL_MODEL_VERSION, RL_WEIGHT_SYNC_EPOCH
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError, VersionGoneError, WeightTransferError
from trinity_bus.weights.link.link import Backend, Link, open_link
from trinity_bus.weights.listener import Keyring, PeerListener, member_name
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, Staged, Staging
from trinity_bus.weights.wire import LINK, LinkOffer

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("trinity_bus.weights")

_SLICE_S = 0.05
"""How long a wait may take to notice that it was cancelled."""


@dataclass(slots=True)
class _Attempt:
    """One serving of one member."""

    member: Member
    prefix: str
    version: int
    cancelled: threading.Event = field(default_factory=threading.Event)
    error: str | None = "the transfer ended before its time"


@dataclass(slots=True)
class _OpenLink:
    prefix: str
    channel: Channel
    link: Link


class WeightPublisher:
    """Keeps the newest versions and sends them to whoever is named. All methods may be called from any thread.

    Args:
        host: Address to listen on and to send from.
        ports: The first free one is where members come to; 0 is any. What gloo and NCCL listen on, they choose.
        bucket_bytes: Size of one message.
        timeout_s: Limit of each step of a transfer: meeting, and each bucket.
        retain: How many of the newest versions can be served.
        dtype: As what floating-point tensors travel; as they are if None.
        method: ``gloo`` moves host memory, ``nccl`` GPU memory.

    Raises:
        LinkError: Nothing can listen on ``host``.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        ports: Sequence[int] = (0,),
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout_s: float = 30.0,
        retain: int = 2,
        dtype: str | None = None,
        method: Backend = "gloo",
    ) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self.method: Backend = method
        device = "cpu" if method == "gloo" else "cuda"
        self.staging = Staging(bucket_bytes=bucket_bytes, retain=retain, device=device, dtype=dtype)
        self._lock = threading.Lock()
        self._come = threading.Condition(self._lock)
        self._links: dict[str, _OpenLink] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._waiting: dict[str, Channel] = {}
        """Members that have come and are not served yet, by their names."""
        self._keyring = Keyring()
        self._listener = PeerListener(host, ports, timeout_s=timeout_s, attend=self._arrived, secrets=self._keyring)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to which members come, for ``ModelVersion``."""
        return self._listener.address

    def stage(self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]") -> str:
        """Copy a version into buffers of its own; its checksum. See ``Staging.stage``."""
        return self.staging.stage(version, named_tensors).checksum

    def keep(self, version: int) -> None:
        """Keep a version, whatever newer ones are staged, until another is named. See ``Staging.keep``."""
        self.staging.keep(version)

    def admit(self, announced: ModelVersion) -> None:
        """Let the members of an announcement in; those of old ones, who still wait, are sent away."""
        keyring = self._keyring
        keyring.add(announced)
        with self._lock:
            gone = {who: channel for who, channel in self._waiting.items() if not keyring.knows(who)}
            for who in gone:
                del self._waiting[who]
        for who, channel in gone.items():
            self._listener.close_channel(channel, who)

    def serve(self, announced: ModelVersion, traceparent: str | None = None) -> dict[str, str | None]:
        """Send a version to all members that its announcement names; blocks until each has it or is dropped.

        Args:
            announced: The announcement.
            traceparent: Parent of the spans.

        Returns:
            Explorer to None, or to why it did not get the version.
        """
        self.admit(announced)
        attempts = {
            member.explorer: _Attempt(member, member_name(announced, member.explorer), announced.version)
            for member in announced.members
        }
        try:
            with self.staging.lease(announced.version, announced.checksum) as staged:
                self._serve(attempts, staged, announced, traceparent)
        except VersionGoneError as error:
            return dict.fromkeys(attempts, str(error))
        return {explorer: attempt.error for explorer, attempt in attempts.items()}

    def close(self) -> None:
        """End what runs and let go of all links."""
        with self._lock:
            for attempt in self._attempts.values():
                attempt.cancelled.set()
            links = list(self._links.values())
            self._links.clear()
            self._waiting.clear()
        for open_one in links:
            open_one.link.close()
        # And with it every channel.
        self._listener.close()

    def _serve(
        self, attempts: dict[str, _Attempt], staged: Staged, announced: ModelVersion, traceparent: str | None
    ) -> None:
        with self._lock:
            begun = {explorer: attempt for explorer, attempt in attempts.items() if self._begin(explorer, attempt)}
        threads = [
            threading.Thread(
                target=self._attempt, args=(attempt, staged, announced, traceparent), name=f"serve-{explorer}"
            )
            for explorer, attempt in begun.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self._lock:
            for explorer, attempt in begun.items():
                if self._attempts.get(explorer) is attempt:
                    del self._attempts[explorer]

    def _begin(self, explorer: str, attempt: _Attempt) -> bool:
        """With the lock held: let an attempt take the place of an earlier one; False where it merely repeats it."""
        earlier = self._attempts.get(explorer)
        if earlier is not None:
            if (earlier.prefix, earlier.version) == (attempt.prefix, attempt.version):
                attempt.error = f"version {attempt.version} is being sent already"
                return False
            earlier.cancelled.set()
        self._attempts[explorer] = attempt
        return True

    def _attempt(self, attempt: _Attempt, staged: Staged, announced: ModelVersion, traceparent: str | None) -> None:
        """Body of a member's thread."""
        explorer = attempt.member.explorer
        with _tracer.start_as_current_span(
            "send weights",
            context=parent_context(traceparent),
            attributes={
                RL_EXPLORER: explorer,
                RL_MODEL_VERSION: announced.version,
                RL_WEIGHT_SYNC_EPOCH: announced.epoch,
            },
        ) as span:
            try:
                self._send(attempt, staged)
                attempt.error = None
            except (WeightTransferError, RuntimeError) as error:
                attempt.error = f"{type(error).__name__}: {error}"
                span.set_status(trace.StatusCode.ERROR, attempt.error)
                _log.warning("version %d was not sent to %s: %s", announced.version, explorer, attempt.error)

    def _arrived(self, channel: Channel, who: str) -> bool:
        """Note that a member has come: it waits for its attempt, which may not have begun."""
        with self._lock:
            former = self._waiting.pop(who, None)
            self._waiting[who] = channel
            self._come.notify_all()
        if former is not None:
            self._listener.close_channel(former, who)
        return True

    def _send(self, attempt: _Attempt, staged: Staged) -> None:
        peer = self._take_link(attempt)
        channel = self._channel(attempt) if peer is None else peer.channel
        try:
            channel.send(LINK.encode(LinkOffer(attempt.version, staged.manifest.to_json())))
            if peer is None:
                peer = _OpenLink(attempt.prefix, channel, self._open_link(channel))
            self._broadcast(peer.link, staged.buffers, attempt)
        except BaseException:
            if peer is not None:
                # Operations that are still pending read the buffers until they time out.
                staged.spoiled = True
                peer.link.close()
            self._listener.close_channel(channel, attempt.prefix)
            raise
        self._keep_link(attempt, peer)

    def _open_link(self, channel: Channel) -> Link:
        from trinity_bus.weights.link.store import LinkStore

        store = LinkStore(channel, self._timeout_s)
        return open_link(store, 0, address=self._host, backend=self.method, timeout_s=self._timeout_s)

    def _channel(self, attempt: _Attempt) -> Channel:
        """Return the channel of the attempt's member, as soon as it has come.

        Raises:
            LinkError: It does not come in time, or is not wanted any more.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            with self._lock:
                while (channel := self._waiting.pop(attempt.prefix, None)) is None:
                    if attempt.cancelled.is_set():
                        raise LinkError("the transfer was cancelled")
                    if time.monotonic() > deadline:
                        raise LinkError(f"the member did not come within {self._timeout_s:g} s")
                    self._come.wait(_SLICE_S)
            if channel.is_open():
                return channel
            # It has come for an earlier attempt, and has gone again.
            self._listener.close_channel(channel, attempt.prefix)

    def _broadcast(self, link: Link, buffers: "list[torch.Tensor]", attempt: _Attempt) -> None:
        for work in [link.broadcast(buffer) for buffer in buffers]:
            link.wait(work, time.monotonic() + self._timeout_s, attempt.cancelled)

    def _take_link(self, attempt: _Attempt) -> _OpenLink | None:
        """Return the open link of this very epoch, if its member has not come anew; another one is closed."""
        with self._lock:
            peer = self._links.pop(attempt.member.explorer, None)
            anew = attempt.prefix in self._waiting
        if peer is not None and (anew or peer.prefix != attempt.prefix or not peer.channel.is_open()):
            self._close(peer)
            peer = None
        return peer

    def _keep_link(self, attempt: _Attempt, peer: _OpenLink) -> None:
        with self._lock:
            current = self._attempts.get(attempt.member.explorer) is attempt and not attempt.cancelled.is_set()
            if current:
                self._links[attempt.member.explorer] = peer
        if not current:
            self._close(peer)
            raise LinkError("a newer announcement took the place of this one")

    def _close(self, peer: _OpenLink) -> None:
        peer.link.close()
        self._listener.close_channel(peer.channel, peer.prefix)
