"""A member's side of weight transfers: receive and verify in a thread, hand over whole and verified versions only.

::

    IDLE --start--> RECEIVING --all bytes there, checksum right, prepared--> READY --take--> IDLE
                        |                                                      |
                        +--broken, late, wrong: FAILED--cancel---------------->+--cancel--> IDLE

The thread gets the version through a transport (``transport``) into host buffers that are kept from version to version:
fresh memory costs page faults. With cores to spare, or on a slow wire, other threads hash each bucket while the next
ones arrive; on one or two cores that would cost a fast wire what it saves.

Several workers of one engine have one copy of the version between them: the first receives it into memory that the
others map (``SharedVersion``). They compare its manifest with the announced checksum, and hash no bytes again that the
first has verified in this very memory. Chunks that were proven before a pull broke off are not sent again if the same
version comes next, from any trainer; they are hashed as a whole in any case, and where that is wrong, all is sent anew.

Failures: whatever goes wrong leaves the receiver FAILED with a reason, and the caller's model as it was. A thread that
has not moved for longer than its waits may take counts as failed, too. ``cancel`` ends any state at once; the next
transfer's thread waits for the former's end for a moment, to use the buffers again; what hangs keeps them.
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
from trinity_bus.weights.checkpoint import CheckpointTransport
from trinity_bus.weights.errors import ManifestError, WeightTransferError
from trinity_bus.weights.layout import Bucket, ContentHash, TransferManifest
from trinity_bus.weights.objects import ObjectTransport
from trinity_bus.weights.pull.transport import PullTransport, Relay
from trinity_bus.weights.transport import Method, Source, WeightTransport

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
    posted_at: float = 0.0  # ready for the first byte
    received_at: float = 0.0  # the last byte was there
    verified_at: float = 0.0  # its checksum was found right
    prepared_at: float = 0.0  # it could be taken
    shared: SharedVersion | None = None  # where others find it, if they may


@dataclass(slots=True)
class _Resources:
    transport: WeightTransport | None = None  # of the method, kept from version to version
    method: Method | None = None
    buffers: "list[torch.Tensor]" = field(default_factory=list)
    memory: SharedMemory | None = None  # that the buffers are a part of, where they are shared
    # Of the version in the buffers: its checksum, and how many of its chunks are there, from the first on, proven
    begun: tuple[str, int] = ("", 0)


class _Transfer:
    """One version on its way. Its thread alone touches ``resources`` until it has ended."""

    def __init__(
        self,
        source: Source,
        receiver: "WeightReceiver",
        relay: Relay,
        *,
        former: "_Transfer | None",
        found: SharedVersion | None,
        ended: Callable[[TransferProgress], None],
    ) -> None:
        self.source = source
        self.resources = _Resources()
        self.cancelled = threading.Event()
        self.manifest: TransferManifest | None = None
        self._receiver = receiver
        self._relay = relay
        self._former = former
        self._found = found
        self._ended = ended
        self._over = threading.Event()
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

    @property
    def ending_s(self) -> float:
        # What is being read from an object store is not broken off.
        return max(_ENDING_S, self.source.timeout_s / 3) if self.source.method == "object" else _ENDING_S

    def wait_over(self, limit_s: float) -> bool:
        return awake.wait_in_thread(self._over.wait, limit_s)

    def run(self) -> None:
        former, self._former = self._former, None
        if former is not None and not former.wait_over(former.ending_s):
            # It hangs, and keeps them.
            self._receiver.resources = _Resources()
        resources = self.resources = self._receiver.resources
        # What is in the buffers is about to be another version.
        self._relay.retire()
        try:
            if (device := self._receiver.device) is not None and device.type == "cuda":
                import torch

                # Every thread begins with the machine's first GPU, whichever its process works on.
                torch.cuda.set_device(device)
            if self._found is not None:
                progress = self._ready(self._map(self._found), TransferProgress())
            else:
                transport = self._transport()
                progress = self._receive(transport)
                transport.end()
            self._progress = progress
        # torch raises RuntimeError and its own kinds of it for everything that can go wrong between two machines.
        except (WeightTransferError, RuntimeError, OSError, MemoryError) as error:
            if self._found is None and resources.transport is not None:
                if resources.transport.still_uses:
                    resources.buffers, resources.memory = [], None
                resources.transport.close()
            if not self.cancelled.is_set():
                # All chunks may have been right, and the whole is not. Else, another transfer may be passed on by now.
                self._relay.retire()
            self._progress = TransferProgress(state="failed", error=f"{type(error).__name__}: {error}")
        self._over.set()
        self._ended(self._progress)

    def _transport(self) -> WeightTransport:
        resources, method = self.resources, self.source.method
        if resources.transport is None or resources.method != method:
            if resources.transport is not None:
                resources.transport.close()
            resources.transport, resources.method = _transport_of(method, self._relay, self._receiver.device), method
        return resources.transport

    def _receive(self, transport: WeightTransport) -> TransferProgress:
        source, resources = self.source, self.resources
        begun, count = resources.begun
        has = count if begun == source.checksum and resources.buffers else 0
        manifest = transport.open(source, self.cancelled, has)
        layout = manifest.buckets()
        size = sum(bucket.nbytes for bucket in layout)
        if (limit := self._receiver.limit_bytes) is not None and size > limit:
            raise ManifestError(f"version {source.version} has {size} bytes; this model takes {limit} at most")
        progress, content = self._receive_all(transport, layout)
        manifest.check_content(content)
        resources.begun = (source.checksum, transport.proven)
        return self._ready(manifest, progress)

    def _ready(self, manifest: TransferManifest, progress: TransferProgress) -> TransferProgress:
        buffers = self.resources.buffers
        verified_at = time.perf_counter()
        if self._receiver.prepare is not None:
            self._receiver.prepare(manifest, self._unless_cancelled(_views(manifest.buckets(), buffers)))
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
        if memory is None or self._found is not None or not self._receiver.shared:
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

    def _receive_all(self, transport: WeightTransport, layout: list[Bucket]) -> tuple[TransferProgress, str]:
        # All but the bytes that are there; also returns the digest of what is there then.
        resources = self.resources
        resources.begun = ("", 0)
        buffers = self._fit_buffers(layout)
        posted_at, self._waiting_since = time.perf_counter(), awake.now()
        with ContentHash() as hashing:
            hashed, last = 0, posted_at

            def arrived(index: int) -> None:
                nonlocal hashed, last
                took_s, last = time.perf_counter() - last, time.perf_counter()
                self._waiting_since = awake.now()
                if self._receiver.overlap or buffers[index].numel() < took_s * _SLOW_WIRE:
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
        return TransferProgress(posted_at=posted_at, received_at=received_at), hashing.hexdigest()

    def _fit_buffers(self, layout: list[Bucket]) -> "list[torch.Tensor]":
        sizes = [bucket.nbytes for bucket in layout]
        if [buffer.numel() for buffer in self.resources.buffers] != sizes:
            self.resources.buffers, self.resources.memory = [], None  # before there is more
            if self._receiver.shared:
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

    With ``overlap`` it hashes while it receives, however fast that is; unset: where there are cores for it. ``prepare``
    is called by the transfer's thread with what has been verified, before it can be taken: views into the buffers. A
    version of more than ``limit_bytes`` is refused before memory is taken. ``shared``: other workers of the engine are
    to map what this one has received.
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
        self.overlap = len(os.sched_getaffinity(0)) > _FEW_CORES if overlap is None else overlap
        self.prepare = prepare
        self.limit_bytes = limit_bytes
        self.device = device
        self.shared = shared
        self.resources = _Resources()  # of the transfer that began last
        self._relay = Relay()
        self._transfer: _Transfer | None = None
        self._last: _Transfer | None = None  # that one, though it be cancelled

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
        self._transfer = self._last = _Transfer(source, self, self._relay, former=self._last, found=shared, ended=ended)
        threading.Thread(target=self._transfer.run, name="receive-weights", daemon=True).start()

    def take(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return the tensors of the version that is ready, as views into the buffers.

        They hold until the next ``start``; the receiver is idle then. WeightTransferError: no whole version is there.
        """
        transfer, progress = self._transfer, self.progress
        if transfer is None or transfer.manifest is None or progress.state != "ready":
            raise WeightTransferError(f"no version is ready: {progress.state} {progress.error}".rstrip())
        self._transfer = None
        return _views(transfer.manifest.buckets(), transfer.resources.buffers)

    @property
    def manifest(self) -> TransferManifest | None:
        """The manifest of the version that is ready; None where none is."""
        return None if self._transfer is None else self._transfer.manifest

    def cancel(self) -> None:
        if self._transfer is not None:
            self._transfer.cancelled.set()
            self._transfer = None

    def close(self) -> None:
        """Cancel, let go of the link, and pass nothing on any more. No thread is left that the process's end meets."""
        self.cancel()
        if self._last is not None and not self._last.wait_over(_ENDING_S):
            self.resources = _Resources()
        self._relay.close()
        if self.resources.transport is not None:
            self.resources.transport.close()
        self.resources = _Resources()


def _transport_of(method: Method, relay: Relay, device: "torch.device | None") -> WeightTransport:
    if method == "checkpoint":
        return CheckpointTransport()
    if method == "object":
        return ObjectTransport()
    return PullTransport(relay, None if method == "memory" else method, device)


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
