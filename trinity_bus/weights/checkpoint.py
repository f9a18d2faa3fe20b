"""Versions that members read from a checkpoint on storage that both see: layout, checksum, and changes lie beside it.

::

    checkpoint_dir/
        step-00000011/model.safetensors      the weights; whole and durable before anything here names them
        published/
            00000011.json                    a transfer manifest: order, dtypes, bucket size, checksum
            00000011.delta                   optional: what has changed since the version published before it

    trainer: stage --> packed for its checksum, as on every other way --> published
    member:  CLOSED --open: hold the folder, read its manifest--> OPEN --fill: read, convert, pack--> (done) --> CLOSED
                              |                                |
                              +--gone: VersionGoneError        +--cannot be read, other tensors: WeightTransferError

A delta file is one framed message (``wire.DeltaHead``) and then the payload; for it the trainer keeps the version
before in memory, one more copy of the model. Files appear by renaming, so no reader sees half of one; a version that is
published again, by another incarnation of the trainer, replaces what was there, and who still reads the old one finds
another checksum than it was told.

While a member reads, the checkpoint is *held* by a shared lock, which the trainer's retention respects: it passes over
a checkpoint that is being read and removes it the next time. The lock ends with the process, however that ends. Where a
file system knows no such locks, a checkpoint may vanish under the reader; each read is a call that then fails, and the
explorer is named again for the newest version. Keep enough checkpoints that this is rare.

Failures: a manifest that is missing is a ``VersionGoneError``; one that is malformed a ``ManifestError``.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.model_version import ModelVersion
from trinity_bus.training import checkpoint
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.delta import Change, Delta, encode
from trinity_bus.weights.errors import LinkError, TensorFileError, VersionGoneError, WeightTransferError
from trinity_bus.weights.layout import MAX_MANIFEST_BYTES, Bucket, ContentHash, Slot, TransferManifest
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, Staging
from trinity_bus.weights.tensor_file import TensorFile
from trinity_bus.weights.transport import Method, Offer, Source
from trinity_bus.weights.wire import DELTA, DeltaHead

if TYPE_CHECKING:
    import torch

FOLDER = "published"
WEIGHTS = "model.safetensors"


def manifest_path(checkpoint: Path, version: int) -> Path:
    return checkpoint.parent / FOLDER / f"{version:08d}.json"


def delta_path(checkpoint: Path, version: int) -> Path:
    return manifest_path(checkpoint, version).with_suffix(".delta")


def write_version(directory: Path, manifest: TransferManifest, base: str, delta: Delta | None) -> None:
    """Publish a version whose checkpoint is durable, with its ``delta`` to the version of checksum ``base``, if any."""
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    name = f"{manifest.version:08d}"
    stale = folder / f"{name}.delta"
    if delta is None:
        stale.unlink(missing_ok=True)
    else:
        head = DELTA.frame(DeltaHead(base, manifest.checksum, delta.changes))
        _write(stale, [head, *(memoryview(part) for part in delta.payload)])
    _write(folder / f"{name}.json", [manifest.to_json()])


def prune_versions(directory: Path, *, keep: int, spared: Collection[int]) -> None:
    """Remove all but the ``keep`` newest versions and those that are ``spared``."""
    versions = {int(path.stem): path for path in (directory / FOLDER).glob("*.json") if path.stem.isdigit()}
    for version in sorted(versions)[:-keep]:
        if version not in spared:
            versions[version].unlink(missing_ok=True)
            versions[version].with_suffix(".delta").unlink(missing_ok=True)


def read_manifest(checkpoint: Path, version: int) -> TransferManifest:
    path = manifest_path(checkpoint, version)
    try:
        with path.open("rb") as file:
            return TransferManifest.from_json(file.read(MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError as error:
        raise VersionGoneError(f"{path} does not exist: the version is gone, or the folder is not shared") from error


def read_delta_head(descriptor: int) -> tuple[DeltaHead, int]:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return DELTA.read(file), file.tell()


def _write(path: Path, parts: list[bytes | memoryview]) -> None:
    partial = path.with_name(f".partial-{path.name}")
    with partial.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


class CheckpointPublisher:
    """Publishes versions beside their checkpoints. One thread at a time calls its methods."""

    method: Method = "checkpoint"

    def __init__(
        self,
        directory: Path,
        *,
        host: str = "127.0.0.1",
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        keep: int = 3,
        dtype: str | None = None,
        deltas: bool = False,
    ) -> None:
        self.staging = Staging(bucket_bytes=bucket_bytes, retain=2 if deltas else 1, dtype=dtype)
        self._directory = directory
        self._host = host
        self._keep = keep
        self._deltas = deltas
        self._last: tuple[int, str] | None = None
        self._kept = -1

    @property
    def address(self) -> tuple[str, int]:
        return self._host, 0

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> str:
        """Publish a version whose checkpoint will be durable. Return its checksum."""
        # A delta is made at once, when the files may not be there.
        manifest = self.staging.stage(version, named_tensors, None if self._deltas else folder)
        base = "" if self._last is None else self._last[1]
        delta = self._delta(version, manifest.checksum) if self._deltas else None
        write_version(self._directory, manifest, base, delta)
        prune_versions(self._directory, keep=self._keep, spared={version, self._kept})
        self._last = (version, manifest.checksum)
        return manifest.checksum

    def keep(self, version: int) -> None:
        """Keep what belongs to a version, whatever newer ones are staged, until another is named."""
        self._kept = version

    def durable(self, version: int) -> None:
        """Nothing: explorers read the files themselves."""
        del version

    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        """Nothing: who may read the folder is the file system's affair."""
        del announced, traceparent

    def close(self) -> None:
        """Nothing is open."""

    def _delta(self, version: int, checksum: str) -> Delta | None:
        if self._last is None or self._last[0] == version:
            return None
        with self.staging.lease(*self._last) as base, self.staging.lease(version, checksum) as target:
            if base.layout != target.layout:
                return None
            return encode(target.layout, base.buffers, target.buffers, target.nbytes)


_PIECE = 16 << 20  # between two looks at whether it is still wanted


class CheckpointTransport:
    """A ``WeightTransport`` from checkpoint folders. It is used for one version."""

    proven = 0

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._layout: list[Bucket] = []
        self._file: TensorFile | None = None
        self._delta: tuple[int, int] | None = None  # the delta's file, and where its payload begins
        self._cancelled = threading.Event()

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        self._cancelled = cancelled
        folder = Path(source.folder)
        if not source.folder or not folder.is_absolute():
            raise WeightTransferError(f"the announcement names no checkpoint folder: {source.folder!r}")
        try:
            self._open.enter_context(checkpoint.held(folder))
            manifest = read_manifest(folder, source.version)
            source.check(manifest)
            if held is not None and (changes := self._open_delta(folder, source, held)) is not None:
                return Offer(manifest, changes)
            self._file = TensorFile(folder / WEIGHTS)
            self._open.callback(self._file.close)
        except (CheckpointError, FileNotFoundError) as error:
            raise VersionGoneError(f"the checkpoint cannot be had any more: {error}") from error
        except OSError as error:
            if isinstance(error, WeightTransferError):
                raise
            raise WeightTransferError(f"{folder} cannot be read: {error}") from error
        self._layout = manifest.buckets()
        return Offer(manifest)

    def fill(self, buffers: "Iterable[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        try:
            if self._delta is not None:
                (payload,) = buffers
                self._read_payload(memoryview(payload.numpy()), *self._delta)
                arrived(0)
                return
            for i, (bucket, buffer) in enumerate(zip(self._layout, buffers, strict=True)):
                end = 0
                for slot in bucket.slots:
                    self._go_on()
                    buffer[end : slot.offset].zero_()
                    self._read_tensor(slot, buffer)
                    end = slot.offset + slot.meta.nbytes
                arrived(i)
        except OSError as error:
            if isinstance(error, WeightTransferError):
                raise
            raise WeightTransferError(f"the checkpoint cannot be read any more: {error}") from error

    def close(self) -> None:
        self._open.close()
        self._file = self._delta = None

    def _open_delta(self, folder: Path, source: Source, held: str) -> tuple[Change, ...] | None:
        try:
            descriptor = os.open(delta_path(folder, source.version), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        self._open.callback(os.close, descriptor)
        head, payload_at = read_delta_head(descriptor)
        if (head.base, head.target) != (held, source.checksum):
            return None
        self._delta = (descriptor, payload_at)
        return head.changes

    def _read_payload(self, place: memoryview, descriptor: int, payload_at: int) -> None:
        done = 0
        while done < len(place):
            self._go_on()
            count = os.preadv(descriptor, [place[done : done + _PIECE]], payload_at + done)
            if count == 0:
                raise TensorFileError("the delta ends before its payload does")
            done += count

    def _read_tensor(self, slot: Slot, buffer: "torch.Tensor") -> None:
        import torch

        file, meta = self._file, slot.meta
        assert file is not None  # noqa: S101 - ``open`` made it
        found = file.meta(meta.name)
        if found.shape != meta.shape:
            raise TensorFileError(f"{meta.name} has shape {found.shape} in the checkpoint, {meta.shape} was announced")
        place = buffer[slot.offset : slot.offset + meta.nbytes]
        if found.dtype == meta.dtype:
            file.read_into(meta.name, memoryview(place.numpy()))
            return
        place.view(getattr(torch, meta.dtype)).view(meta.shape).copy_(file.tensor(meta.name))

    def _go_on(self) -> None:
        if self._cancelled.is_set():
            raise LinkError("the transfer was cancelled")


def prove(transport: CheckpointTransport, source: Source, cancelled: threading.Event) -> TransferManifest:
    """Read a whole version and compare its digest.

    ``transport`` holds the checkpoint until it is closed, however this ends.
    """
    import torch

    manifest = transport.open(source, None, cancelled).manifest
    full: list[torch.Tensor] = []

    def empty() -> "Iterator[torch.Tensor]":
        for bucket in manifest.buckets():
            full.append(torch.zeros(bucket.nbytes, dtype=torch.uint8))
            yield full[-1]

    with ContentHash() as hashing:

        def arrived(_: int) -> None:
            hashing.put(full.pop())

        transport.fill(empty(), arrived)
    if hashing.hexdigest() != manifest.content:
        raise WeightTransferError(
            f"the bytes of version {source.version} have digest {hashing.hexdigest()}, announced was {manifest.content}"
        )
    return manifest
