"""A member's side of weight transfers: receive and verify in a thread, hand over whole and verified versions only.

::

    IDLE --start--> RECEIVING --all bytes there, checksum right--> READY --take--> IDLE
                        |                                            |
                        +--broken, late, wrong: FAILED--cancel------>+--cancel--> IDLE

The thread joins the trainer's store, reads the manifest, opens the link that it names (or keeps the open one), and
receives into buffers that are kept from version to version, because fresh memory costs page faults. With cores to
spare, another thread hashes each bucket while the next ones arrive; on one or two cores that would cost the wire what
it saves, so the hashing waits for the last byte.

Failures: whatever goes wrong leaves the receiver FAILED with a reason, and the caller's model as it was. ``cancel``
ends any state at once: what a thread still holds, it closes itself, and nothing of it is used again.
"""

import contextlib
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

from trinity_bus.weights.buckets import Bucket
from trinity_bus.weights.errors import LinkError, ManifestError, WeightTransferError
from trinity_bus.weights.link import Backend, Link, join_store, local_address, open_link
from trinity_bus.weights.manifest import TransferManifest

if TYPE_CHECKING:
    import torch
    from torch.distributed import TCPStore

_FEW_CORES = 2

type ReceiverState = Literal["idle", "receiving", "ready", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a version comes from."""

    host: str
    port: int
    prefix: str
    """``{trainer_incarnation}/{epoch}/{explorer}``."""
    version: int
    checksum: str
    """As announced; the manifest and the bytes must agree with it."""
    backend: Backend = "gloo"
    timeout_s: float = 30.0
    """Limit of each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a receiver says about itself. Times are ``time.monotonic`` of this machine, 0.0 where not reached."""

    state: ReceiverState = "idle"
    error: str = ""
    checksum: str = ""
    """Of the bytes that arrived."""
    nbytes: int = 0
    posted_at: float = 0.0
    """When it was ready for the first byte."""
    received_at: float = 0.0
    """When the last byte was there."""
    verified_at: float = 0.0
    """When its checksum was found right."""


@dataclass(slots=True)
class _Resources:
    """What outlives a transfer that went well."""

    store: "TCPStore | None" = None
    address: tuple[str, int] | None = None
    link: Link | None = None
    link_name: str = ""
    buffers: "list[torch.Tensor]" = field(default_factory=list)

    def close(self) -> None:
        if self.link is not None:
            self.link.close()


class _Transfer:
    """One version on its way. Its thread alone touches ``resources`` until it has ended."""

    def __init__(self, source: Source, resources: _Resources, *, overlap: bool) -> None:
        self.source = source
        self.overlap = overlap
        self.resources = resources
        self.cancelled = threading.Event()
        self.progress = Progress(state="receiving")
        self.manifest: TransferManifest | None = None

    def run(self) -> None:
        """Body of the thread."""
        try:
            progress = self._receive()
        # torch raises RuntimeError and its own kinds of it for everything that can go wrong between two machines.
        except (WeightTransferError, RuntimeError, OSError) as error:
            self.resources.close()
            self.progress = Progress(state="failed", error=f"{type(error).__name__}: {error}")
        else:
            self.progress = progress

    def _receive(self) -> Progress:
        source, resources = self.source, self.resources
        manifest = self._read_manifest()
        name = f"{source.prefix}/link{manifest.link}"
        if resources.link is None or resources.link_name != name:
            resources.close()
            resources.link = open_link(
                self._join(),
                name,
                1,
                address=local_address(source.host, source.port),
                backend=source.backend,
                timeout_s=source.timeout_s,
            )
            resources.link_name = name
        layout = manifest.buckets()
        self._fit_buffers(layout, resources.link.device)
        posted_at = time.monotonic()
        digest, received_at = self._receive_buckets(resources.link)
        if digest != source.checksum:
            raise WeightTransferError(
                f"the bytes of version {source.version} have checksum {digest}, announced was {source.checksum}"
            )
        self.manifest = manifest
        return Progress(
            state="ready",
            checksum=digest,
            nbytes=sum(bucket.nbytes for bucket in layout),
            posted_at=posted_at,
            received_at=received_at,
            verified_at=time.monotonic(),
        )

    def _join(self) -> "TCPStore":
        """The trainer's store; the connection of the last transfer where the trainer is the same."""
        source, resources = self.source, self.resources
        if resources.store is None or resources.address != (source.host, source.port):
            resources.store = join_store(source.host, source.port, timeout_s=source.timeout_s)
            resources.address = (source.host, source.port)
        return resources.store

    def _read_manifest(self) -> TransferManifest:
        from torch.distributed import DistStoreError

        source = self.source
        key = f"{source.prefix}/{source.version}"
        store = self._join()
        store.set_timeout(timedelta(seconds=source.timeout_s))
        try:
            text = store.get(key)
        except DistStoreError as error:
            raise LinkError(
                f"the trainer at {source.host}:{source.port} did not serve {key} within {source.timeout_s:g} s"
            ) from error
        manifest = TransferManifest.from_json(text)
        if manifest.version != source.version or manifest.checksum != source.checksum:
            raise ManifestError(
                f"the trainer serves version {manifest.version} with checksum {manifest.checksum}, "
                f"announced was {source.version} with {source.checksum}"
            )
        return manifest

    def _fit_buffers(self, layout: list[Bucket], device: str) -> None:
        import torch

        sizes = [bucket.nbytes for bucket in layout]
        if [buffer.numel() for buffer in self.resources.buffers] != sizes:
            self.resources.buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]

    def _receive_buckets(self, link: Link) -> tuple[str, float]:
        """Receive all buckets; their checksum, and when the last byte was there."""
        buffers = self.resources.buffers
        works = [link.broadcast(buffer) for buffer in buffers]
        digest = hashlib.sha256()
        with _Hasher(digest.update) if self.overlap else contextlib.nullcontext() as hasher:
            for work, buffer in zip(works, buffers, strict=True):
                link.wait(work, time.monotonic() + self.source.timeout_s, self.cancelled)
                if hasher is not None:
                    hasher.put(buffer)
            received_at = time.monotonic()
        if not self.overlap:
            for buffer in buffers:
                digest.update(buffer.cpu().numpy())
        return digest.hexdigest(), received_at


class _Hasher:
    """A thread that hashes buckets while others arrive. Leaving the context waits until it has hashed all."""

    def __init__(self, update: Callable[[Any], None]) -> None:
        self._update = update
        self._arrived: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hash-weights", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._arrived.put(None)
        self._thread.join()

    def put(self, buffer: "torch.Tensor") -> None:
        self._arrived.put(buffer)

    def _run(self) -> None:
        while (buffer := self._arrived.get()) is not None:
            self._update(buffer.cpu().numpy())


class WeightReceiver:
    """Receives one version at a time. Its methods are called from one thread.

    Args:
        overlap: Whether to hash while receiving; by default, where there are cores for it.
    """

    def __init__(self, *, overlap: bool | None = None) -> None:
        self._overlap = len(os.sched_getaffinity(0)) > _FEW_CORES if overlap is None else overlap
        self._resources = _Resources()
        self._transfer: _Transfer | None = None

    @property
    def progress(self) -> Progress:
        """Where it stands."""
        return self._transfer.progress if self._transfer is not None else Progress()

    def start(self, source: Source) -> None:
        """Begin to receive.

        Raises:
            WeightTransferError: It is not idle.
        """
        if self._transfer is not None:
            raise WeightTransferError(f"a transfer is {self.progress.state}; cancel it first")
        self._transfer = _Transfer(source, self._resources, overlap=self._overlap)
        self._resources = _Resources()
        threading.Thread(target=self._transfer.run, name="receive-weights", daemon=True).start()

    def take(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """The tensors of the version that is ready, as views into the buffers; the receiver is idle from now on.

        The views hold until the next ``start``.

        Raises:
            WeightTransferError: No whole version is there.
        """
        transfer, progress = self._transfer, self.progress
        if transfer is None or transfer.manifest is None or progress.state != "ready":
            raise WeightTransferError(f"no version is ready: {progress.state} {progress.error}".rstrip())
        self._transfer = None
        self._resources = transfer.resources
        return _views(transfer.manifest.buckets(), transfer.resources.buffers)

    def names(self) -> list[str]:
        """Names of the tensors of the version that is ready, in order; empty where none is."""
        if self._transfer is None or self._transfer.manifest is None:
            return []
        return [meta.name for meta in self._transfer.manifest.tensors]

    def cancel(self) -> None:
        """End whatever goes on and become idle."""
        transfer, self._transfer = self._transfer, None
        if transfer is None:
            return
        transfer.cancelled.set()
        if transfer.progress.state == "ready":
            self._resources = transfer.resources

    def close(self) -> None:
        """Cancel, and let go of the link."""
        self.cancel()
        self._resources.close()
        self._resources = _Resources()


def _views(layout: list[Bucket], buffers: "list[torch.Tensor]") -> "Iterator[tuple[str, torch.Tensor]]":
    import torch

    for bucket, buffer in zip(layout, buffers, strict=True):
        for slot in bucket.slots:
            meta = slot.meta
            place = buffer[slot.offset : slot.offset + meta.nbytes]
            yield meta.name, place.view(getattr(torch, meta.dtype)).view(meta.shape)
