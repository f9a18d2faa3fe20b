"""The trainer's side of transfers over links: a staged version goes to each member over a link of its own.

Staged versions lie in host or, with NCCL, device memory. ``serve`` runs one thread per member:

::

    announce manifest in the store -> open the link (or keep the one of this epoch) -> bucket after bucket -> served
                     |                          |                                           |
                     +--------------------------+------- deadline, death, newer epoch ------+-> dropped, with a reason

Failures: a member that is dead, slow or gone is dropped, and the others never wait for it. Its link is closed, and the
buffers that its pending operations still read are given up rather than used again. The coordinator hears of it from
the member's silence or from its own ``WeightsSynced``, and writes a new epoch; ``serve`` for that epoch ends an attempt
that still runs for the same member.
"""

import itertools
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opentelemetry import trace

from schemas.model_version import Member, ModelVersion
from trinity_bus.telemetry.context import parent_context
from trinity_bus.telemetry.conventions import RL_EXPLORER, RL_MODEL_VERSION, RL_WEIGHT_SYNC_EPOCH
from trinity_bus.weights.errors import LinkError, VersionGoneError, WeightTransferError
from trinity_bus.weights.link import Backend, Link, link_key, open_link, serve_store
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, Staged, Staging

if TYPE_CHECKING:
    import torch
    from torch.distributed import TCPStore

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("trinity_bus.weights")


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
    number: int
    store: "TCPStore"
    """A connection of its own, because waiting on one blocks it."""
    link: Link


class WeightPublisher:
    """Keeps the newest versions and sends them to whoever is named. All methods may be called from any thread.

    Args:
        host: Address to listen on and to send from.
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
        self._store = serve_store(host, timeout_s=timeout_s)
        self._lock = threading.Lock()
        self._links: dict[str, _OpenLink] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._numbers = itertools.count()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the rendezvous store, for ``ModelVersion``."""
        return self._host, self._store.port

    def stage(self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]") -> str:
        """Copy a version into buffers of its own; its checksum. See ``Staging.stage``."""
        return self.staging.stage(version, named_tensors).checksum

    def keep(self, version: int) -> None:
        """Keep a version, whatever newer ones are staged, until another is named. See ``Staging.keep``."""
        self.staging.keep(version)

    def serve(self, announced: ModelVersion, traceparent: str | None = None) -> dict[str, str | None]:
        """Send a version to all members that its announcement names; blocks until each has it or is dropped.

        Args:
            announced: The announcement.
            traceparent: Parent of the spans.

        Returns:
            Explorer to None, or to why it did not get the version.
        """
        attempts = {
            member.explorer: _Attempt(
                member, f"{announced.trainer_incarnation}/{announced.epoch}/{member.explorer}", announced.version
            )
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
        for open_one in links:
            open_one.link.close()

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

    def _send(self, attempt: _Attempt, staged: Staged) -> None:
        peer = self._take_link(attempt)
        store = self._store.clone() if peer is None else peer.store
        number = next(self._numbers) if peer is None else peer.number
        key = f"{attempt.prefix}/{attempt.version}"
        store.multi_set([key, link_key(key)], [staged.manifest.to_json().decode(), str(number)])
        try:
            if peer is None:
                link = open_link(
                    store,
                    f"{attempt.prefix}/link{number}",
                    0,
                    address=self._host,
                    backend=self.method,
                    timeout_s=self._timeout_s,
                )
                peer = _OpenLink(attempt.prefix, number, store, link)
            try:
                self._broadcast(peer.link, staged.buffers, attempt)
            except BaseException:
                # Operations that are still pending read the buffers until they time out.
                staged.spoiled = True
                peer.link.close()
                raise
        finally:
            # The other side has read it, or never will: neither backend moves a byte before it is asked for.
            store.delete_key(key)
            store.delete_key(link_key(key))
        self._keep_link(attempt, peer)

    def _broadcast(self, link: Link, buffers: "list[torch.Tensor]", attempt: _Attempt) -> None:
        for work in [link.broadcast(buffer) for buffer in buffers]:
            link.wait(work, time.monotonic() + self._timeout_s, attempt.cancelled)

    def _take_link(self, attempt: _Attempt) -> _OpenLink | None:
        """The open link of this very epoch; one of another epoch is closed."""
        with self._lock:
            peer = self._links.pop(attempt.member.explorer, None)
        if peer is not None and peer.prefix != attempt.prefix:
            peer.link.close()
            peer = None
        return peer

    def _keep_link(self, attempt: _Attempt, peer: _OpenLink) -> None:
        with self._lock:
            current = self._attempts.get(attempt.member.explorer) is attempt and not attempt.cancelled.is_set()
            if current:
                self._links[attempt.member.explorer] = peer
        if not current:
            peer.link.close()
            raise LinkError("a newer announcement took the place of this one")
