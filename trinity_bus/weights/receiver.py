"""A member's side of weight transfers: receive and verify in a thread, hand over whole and verified versions only.

::

    IDLE --start--> RECEIVING --all bytes there, checksum right, prepared--> READY --take--> IDLE
                        |                                                      |
                        +--broken, late, wrong: FAILED--cancel---------------->+--cancel--> IDLE

The thread gets the version through a transport (``transport``), whichever way it comes, into host buffers that are kept
from version to version: fresh memory costs page faults, and what the buffers hold is the base of a delta. A delta is
received beside them and then written into them, so it needs memory for itself alone; the copy of the model in host
memory that a member keeps is there in any case. With cores to spare, or on a slow wire, other threads hash each bucket
while the next ones arrive; on one or two cores that would cost a fast wire what it saves, so the hashing waits for the
last byte.

Several workers of one engine have one copy of the version between them: the first receives it into memory that the
others map (``SharedVersion``), so the bytes come once, and are kept once; they are not proven again.

What did not come from a checkpoint is passed on to other members while it comes, and until the next ``start``
(``pull.relay``). A pull that breaks off leaves the chunks that were proven in the buffers. If the same version is to be
taken next, in whichever epoch and from whichever trainer, it goes on from there; and so does one whose bytes are all
there. They are hashed as a whole in any case, and where that is wrong, all is received anew the next time.

Failures: whatever goes wrong leaves the receiver FAILED with a reason, and the caller's model as it was. A thread that
has not moved for longer than its waits may take, such as in a file system that hangs, counts as failed, too. ``cancel``
ends any state at once: what a thread still holds, it closes itself. The next transfer's thread waits for its end for a
moment, to use the buffers again; what hangs keeps them. Bytes that were touched and not proven right are no base: the
next version is then received whole.
"""

import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from trinity_bus import awake
from trinity_bus.runtime.device import SharedMemory, host_buffer, shared_memory
from trinity_bus.weights import delta
from trinity_bus.weights.checkpoint import CheckpointTransport
from trinity_bus.weights.errors import ManifestError, WeightTransferError
from trinity_bus.weights.layout import Bucket, ContentHash, TransferManifest, spans
from trinity_bus.weights.link.carrier import carrier_of
from trinity_bus.weights.pull.relay import Relay
from trinity_bus.weights.pull.transport import PullTransport
from trinity_bus.weights.transport import Method, Offer, Source, WeightTransport

if TYPE_CHECKING:
    import torch

_FEW_CORES = 2
_SLOW_WIRE = 300e6  # Bytes a second, under which a core that hashes has time to spare
_WAITS = 2  # Steps with a limit between two signs of life: finding the trainer, and meeting it
_GRACE_S = 2.0  # how much longer than that a thread may say nothing

_ENDING_S = 1.0  # How long a thread that was cancelled is waited for; its waits end within moments

type Prepare = "Callable[[TransferManifest, Iterator[tuple[str, torch.Tensor]]], None]"
type ReceiverState = Literal["idle", "receiving", "ready", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedVersion:
    """Where other processes of this machine and user find a version: its buckets, each at a page, then the manifest."""

    process: int
    file: int  # its descriptor there
    manifest_at: int
    manifest_nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """What a receiver says about itself. Times are ``time.perf_counter`` of this machine, 0.0 where not reached."""

    state: ReceiverState = "idle"
    error: str = ""
    checksum: str = ""  # of the bytes that the member now has
    nbytes: int = 0  # of the version
    # How many of them came; fewer where only what had changed was sent, or some were there from a former try
    received_nbytes: int = 0
    posted_at: float = 0.0  # ready for the first byte
    received_at: float = 0.0  # the last byte was there
    verified_at: float = 0.0  # its checksum was found right
    prepared_at: float = 0.0  # it could be taken
    shared: SharedVersion | None = None  # where others find it, if they may


@dataclass(slots=True)
class _Resources:
    links: PullTransport | None = None  # and the method that it is for
    linked_by: Method = "gloo"
    buffers: "list[torch.Tensor]" = field(default_factory=list)
    memory: SharedMemory | None = None  # that the buffers are a part of, where they are shared
    held: TransferManifest | None = None  # the version whose bytes are in the buffers, proven
    # Where none is: the checksum of one that was begun, and how many of its chunks are there, each proven
    begun: tuple[str, int] = ("", 0)

    def chunks_of(self, checksum: str) -> int:
        if not self.buffers:
            return 0
        if self.held is not None and self.held.checksum == checksum:
            return len(spans((bucket.nbytes for bucket in self.held.buckets()), self.held.bucket_bytes))
        begun, count = self.begun
        return count if begun == checksum else 0


class _Transfer:
    """One version on its way. Its thread alone touches ``resources`` until it has ended."""

    def __init__(
        self,
        source: Source,
        resources: _Resources,
        relay: Relay,
        *,
        former: "_Transfer | None",
        overlap: bool,
        prepare: Prepare | None,
        limit_bytes: int | None,
        device: "torch.device | None",
        shared: bool,
        found: SharedVersion | None,
        ended: Callable[[TransferProgress], None],
    ) -> None:
        self.source = source
        self._shared, self._found = shared, found
        self._prepare = prepare
        self._limit_bytes = limit_bytes
        self._device = device
        self.overlap = overlap
        self.resources = resources
        self._former = former
        self._relay = relay
        self.cancelled = threading.Event()
        self._over = threading.Event()
        self.manifest: TransferManifest | None = None
        self._ended = ended
        self._progress = TransferProgress(state="receiving")
        self._waiting_since: float | None = awake.now()  # for the other side; None while it computes

    @property
    def progress(self) -> TransferProgress:
        # Failed where it has not moved for too long.
        progress, since, limit_s = self._progress, self._waiting_since, _WAITS * self.source.timeout_s + _GRACE_S
        if progress.state == "receiving" and since is not None and awake.now() - since > limit_s:
            return TransferProgress(state="failed", error=f"WeightTransferError: nothing has moved for {limit_s:g} s")
        return progress

    @property
    def over(self) -> bool:
        # Its thread will not touch ``resources`` any more.
        return self._over.is_set()

    def wait_over(self, limit_s: float) -> bool:
        return awake.wait_in_thread(self._over.wait, limit_s)

    def run(self) -> None:
        former, self._former = self._former, None
        if former is not None and former.wait_over(_ENDING_S):
            self.resources = former.resources
        source, resources = self.source, self.resources
        # What is in the buffers is about to be another version.
        self._relay.retire()
        transport: WeightTransport | None = None
        try:
            if self._device is not None and self._device.type == "cuda":
                import torch

                # Every thread begins with the machine's first GPU, whichever its process works on.
                torch.cuda.set_device(self._device)
            if self._found is not None:
                progress = self._ready(self._map(self._found), TransferProgress())
            else:
                transport = self._transport(source)
                progress = self._receive(transport)
        # torch raises RuntimeError and its own kinds of it for everything that can go wrong between two machines.
        except (WeightTransferError, RuntimeError, OSError, MemoryError) as error:
            if transport is not None:
                transport.close()
            if not self.cancelled.is_set():
                # All chunks may have been right, and the whole is not. Else, another transfer may be passed on by now.
                self._relay.retire()
            if transport is not None and transport is resources.links:
                # What is pending on the link may still write into them.
                resources.links, resources.buffers, resources.memory, resources.held = None, [], None, None
                resources.begun = ("", 0)
            self._progress = TransferProgress(state="failed", error=f"{type(error).__name__}: {error}")
        else:
            if transport is not None and transport is not resources.links:
                transport.close()
            self._progress = progress
        self._over.set()
        self._ended(self._progress)

    def _transport(self, source: Source) -> WeightTransport:
        resources, method = self.resources, source.method
        if method == "checkpoint":
            return CheckpointTransport()
        if method == "memory":
            return PullTransport(self._relay, has=resources.chunks_of(source.checksum))
        if resources.links is None or resources.linked_by != method:
            if resources.links is not None:
                resources.links.close()
            resources.links, resources.linked_by = (
                PullTransport(self._relay, carrier_of(method, self._device)),
                method,
            )
        return resources.links

    def _receive(self, transport: WeightTransport) -> TransferProgress:
        source, resources = self.source, self.resources
        base = resources.held
        offer = transport.open(source, None if base is None else base.checksum, self.cancelled)
        layout = offer.manifest.buckets()
        size = sum(bucket.nbytes for bucket in layout)
        if self._limit_bytes is not None and size > self._limit_bytes:
            limit = self._limit_bytes
            raise ManifestError(f"version {source.version} has {size} bytes; this model takes {limit} at most")
        if offer.changes is None:
            progress, content = self._receive_all(transport, layout, offer.kept)
        else:
            progress, content = self._receive_changes(transport, layout, offer)
        if content != offer.manifest.content:
            raise WeightTransferError(
                f"the bytes of version {source.version} have digest {content}, announced was {offer.manifest.content}"
            )
        resources.held = offer.manifest
        return self._ready(offer.manifest, progress)

    def _ready(self, manifest: TransferManifest, progress: TransferProgress) -> TransferProgress:
        buffers = self.resources.buffers
        verified_at = time.perf_counter()
        if self._prepare is not None:
            self._prepare(manifest, self._unless_cancelled(_views(manifest.buckets(), buffers)))
        self.manifest = manifest
        return replace(
            progress,
            state="ready",
            checksum=manifest.checksum,
            nbytes=sum(buffer.numel() for buffer in buffers),
            verified_at=verified_at,
            prepared_at=time.perf_counter(),
            shared=self._told(manifest),
        )

    def _told(self, manifest: TransferManifest) -> SharedVersion | None:
        # The manifest stands behind the bytes, for those who are to map them.
        memory = self.resources.memory
        if memory is None or self._found is not None or not self._shared:
            return None
        text = manifest.to_json()
        os.pwrite(memory.file, text, len(memory))
        return SharedVersion(process=os.getpid(), file=memory.file, manifest_at=len(memory), manifest_nbytes=len(text))

    def _map(self, shared: SharedVersion) -> TransferManifest:
        # The buffers become those of another process.
        resources = self.resources
        # For nobody.
        self._waiting_since = None
        file = os.open(f"/proc/{shared.process}/fd/{shared.file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            manifest = TransferManifest.from_json(os.pread(file, shared.manifest_nbytes, shared.manifest_at))
            if manifest.checksum != self.source.checksum:
                raise WeightTransferError(f"another version than {self.source.version} was found in the first worker")
            sizes = [bucket.nbytes for bucket in manifest.buckets()]
            if sum(map(_paged, sizes)) != shared.manifest_at:
                raise ManifestError("the bytes are not those of the manifest")
            if resources.memory is None or not os.path.sameopenfile(resources.memory.file, file):
                resources.buffers, resources.memory = [], None
                resources.memory, whole = shared_memory(os.dup(file), shared.manifest_at)
                resources.buffers = _parted(whole, sizes)
        finally:
            os.close(file)
        return manifest

    def _unless_cancelled(self, tensors: "Iterator[tuple[str, torch.Tensor]]") -> "Iterator[tuple[str, torch.Tensor]]":
        for named in tensors:
            if self.cancelled.is_set():
                raise WeightTransferError("the transfer was cancelled")
            yield named

    def _receive_all(self, transport: WeightTransport, layout: list[Bucket], kept: int) -> tuple[TransferProgress, str]:
        # All but the bytes that are there; also returns the digest of what is there then.
        resources = self.resources
        resources.held, resources.begun = None, ("", 0)
        buffers = self._fit_buffers(layout)
        posted_at, self._waiting_since = time.perf_counter(), awake.now()
        with ContentHash() as hashing:
            hashed, last = 0, posted_at

            def arrived(index: int) -> None:
                nonlocal hashed, last
                took_s, last = time.perf_counter() - last, time.perf_counter()
                self._waiting_since = awake.now()
                if self.overlap or buffers[index].numel() < took_s * _SLOW_WIRE:
                    for buffer in buffers[hashed : index + 1]:
                        hashing.put(buffer)
                    hashed = index + 1

            try:
                transport.fill(buffers, arrived)
            except WeightTransferError:
                resources.begun = (self.source.checksum, transport.proven)
                raise
            received_at = time.perf_counter()
            self._waiting_since = None
            for buffer in buffers[hashed:]:
                hashing.put(buffer)
        received_nbytes = sum(bucket.nbytes for bucket in layout) - kept
        progress = TransferProgress(received_nbytes=received_nbytes, posted_at=posted_at, received_at=received_at)
        return progress, hashing.hexdigest()

    def _receive_changes(
        self, transport: WeightTransport, layout: list[Bucket], offer: Offer
    ) -> tuple[TransferProgress, str]:
        # Written into the buffers; also returns the digest of what they hold then.
        import torch

        resources, changes = self.resources, offer.changes or ()
        if resources.held is None or resources.held.buckets() != layout:
            raise WeightTransferError("a delta was sent to a member that holds nothing, or another model")
        size = delta.payload_size(layout, changes)
        if size > sum(bucket.nbytes for bucket in layout):
            raise WeightTransferError(f"a delta of {size} bytes is larger than the version")
        payload = torch.empty(size, dtype=torch.uint8)
        posted_at, self._waiting_since = time.perf_counter(), awake.now()
        transport.fill([payload], lambda _: None)
        received_at = time.perf_counter()
        self._waiting_since = resources.held = None
        delta.apply(layout, [buffer.numpy() for buffer in resources.buffers], changes, payload.numpy())
        with ContentHash() as hashing:
            for buffer in resources.buffers:
                hashing.put(buffer)
        return TransferProgress(received_nbytes=size, posted_at=posted_at, received_at=received_at), hashing.hexdigest()

    def _fit_buffers(self, layout: list[Bucket]) -> "list[torch.Tensor]":
        sizes = [bucket.nbytes for bucket in layout]
        if [buffer.numel() for buffer in self.resources.buffers] != sizes:
            self.resources.buffers, self.resources.memory = [], None  # before there is more
            if self._shared:
                file = os.memfd_create("weights")
                size = sum(map(_paged, sizes))
                os.ftruncate(file, size)
                self.resources.memory, whole = shared_memory(file, size)
                self.resources.buffers = _parted(whole, sizes)
            else:
                self.resources.buffers = [host_buffer(size).zero_() for size in sizes]
        return self.resources.buffers


class WeightReceiver:
    """Receives one version at a time. One thread at a time calls its methods.

    Args:
        overlap: Whether to hash while receiving, however fast; by default, where there are cores for it.
        prepare: Called by the transfer's thread with what has been verified, before it can be taken. The tensors are
            views into the buffers. What it raises as ``WeightTransferError`` fails the transfer.
        limit_bytes: Most bytes of a version; more is refused before memory is taken. Unset: what a manifest may say.
        shared: Whether other workers of the engine are to map what this one has received.
    """

    def __init__(
        self,
        *,
        overlap: bool | None = None,
        prepare: Prepare | None = None,
        limit_bytes: int | None = None,
        device: "torch.device | None" = None,
        shared: bool = False,
    ) -> None:
        self._shared = shared
        self._prepare = prepare
        self._limit_bytes = limit_bytes
        self._device = device
        self._overlap = len(os.sched_getaffinity(0)) > _FEW_CORES if overlap is None else overlap
        self._resources = _Resources()
        self._relay = Relay()
        self._transfer: _Transfer | None = None
        self._ending: _Transfer | None = None  # was cancelled, and may still use the buffers

    @property
    def progress(self) -> TransferProgress:
        return self._transfer.progress if self._transfer is not None else TransferProgress()

    def start(
        self,
        source: Source,
        ended: Callable[[TransferProgress], None] = lambda _: None,
        shared: SharedVersion | None = None,
    ) -> None:
        """Begin to receive, or to map what another worker has received (``shared``). WeightTransferError: not idle.

        ``ended`` is called by the transfer's thread when it is ready or has failed, be it cancelled by then or not.
        """
        if self._transfer is not None:
            raise WeightTransferError(f"a transfer is {self.progress.state}; cancel it first")
        self._transfer = _Transfer(
            source,
            self._resources,
            self._relay,
            former=self._ending,
            overlap=self._overlap,
            prepare=self._prepare,
            limit_bytes=self._limit_bytes,
            device=self._device,
            shared=self._shared,
            found=shared,
            ended=ended,
        )
        self._resources, self._ending = _Resources(), None
        threading.Thread(target=self._transfer.run, name="receive-weights", daemon=True).start()

    def let_in(self, source: Source) -> None:
        """Pass the version that has come on to the members of another announcement, too, if it is of that version."""
        self._relay.let_in(source)

    def take(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return the tensors of the version that is ready, as views into the buffers.

        They hold until the next ``start``; the receiver is idle then. WeightTransferError: no whole version is there.
        """
        transfer, progress = self._transfer, self.progress
        if transfer is None or transfer.manifest is None or progress.state != "ready":
            raise WeightTransferError(f"no version is ready: {progress.state} {progress.error}".rstrip())
        self._transfer = None
        self._resources = transfer.resources
        return _views(transfer.manifest.buckets(), transfer.resources.buffers)

    @property
    def manifest(self) -> TransferManifest | None:
        """The manifest of the version that is ready; None where none is."""
        return None if self._transfer is None else self._transfer.manifest

    def cancel(self) -> None:
        transfer, self._transfer = self._transfer, None
        if transfer is None:
            return
        transfer.cancelled.set()
        if transfer.over:
            self._resources = transfer.resources
        else:
            self._ending = transfer

    def close(self) -> None:
        """Cancel, let go of the link, and pass nothing on any more. No thread is left that the process's end meets."""
        self.cancel()
        if self._ending is not None and self._ending.wait_over(_ENDING_S):
            self._resources, self._ending = self._ending.resources, None
        self._relay.close()
        if self._resources.links is not None:
            self._resources.links.close()
        self._resources = _Resources()


def _paged(nbytes: int) -> int:
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def _parted(whole: "torch.Tensor", sizes: list[int]) -> "list[torch.Tensor]":
    starts = itertools.accumulate(map(_paged, sizes), initial=0)
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def _views(layout: list[Bucket], buffers: "list[torch.Tensor]") -> "Iterator[tuple[str, torch.Tensor]]":
    import torch

    for bucket, buffer in zip(layout, buffers, strict=True):
        for slot in bucket.slots:
            meta = slot.meta
            place = buffer[slot.offset : slot.offset + meta.nbytes]
            yield meta.name, place.view(getattr(torch, meta.dtype)).view(meta.shape)
