"""Versions that members read from a checkpoint on storage that both see: layout and checksum lie beside it.

::

    checkpoint_dir/
        step-00000011/model.safetensors      the weights; whole and durable before anything here names them
        published/
            00000011.json                    a transfer manifest: order, dtypes, bucket size, checksum

    trainer: stage --> packed for its checksum, as on every other way --> published
    member:  CLOSED --open: hold the folder, read its manifest--> OPEN --fill: read, convert, pack--> (done) --> CLOSED
                              |                                |
                              +--gone: VersionGoneError        +--cannot be read, other tensors: WeightTransferError

Files appear by renaming, so no reader sees half of one; a version that is published again, by another incarnation of
the trainer, replaces what was there, and who still reads the old one finds another checksum than it was told.

While a member reads, the checkpoint is *held* by a shared lock, which ends with its process; the trainer's retention
passes over it until the next time. Where a file system knows no such locks, a checkpoint may vanish under the reader,
whose next read then fails; keep enough checkpoints that this is rare.

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
from trinity_bus.weights.errors import LinkError, VersionGoneError, WeightTransferError
from trinity_bus.weights.layout import MAX_MANIFEST_BYTES, Bucket, ContentHash, TransferManifest
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, ModelFiles, Staging
from trinity_bus.weights.transport import Method, Source

if TYPE_CHECKING:
    import torch

FOLDER = "published"
WEIGHTS = "model.safetensors"


def manifest_path(checkpoint: Path, version: int) -> Path:
    return checkpoint.parent / FOLDER / f"{version:08d}.json"


def write_version(directory: Path, manifest: TransferManifest) -> None:
    """Publish a version whose checkpoint is durable."""
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{manifest.version:08d}.json"
    partial = path.with_name(f".partial-{path.name}")
    with partial.open("wb") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def prune_versions(directory: Path, *, keep: int, spared: Collection[int]) -> None:
    """Remove all but the ``keep`` newest versions and those that are ``spared``."""
    versions = {int(path.stem): path for path in (directory / FOLDER).glob("*.json") if path.stem.isdigit()}
    for version in sorted(versions)[:-keep]:
        if version not in spared:
            versions[version].unlink(missing_ok=True)


def read_manifest(checkpoint: Path, version: int) -> TransferManifest:
    path = manifest_path(checkpoint, version)
    try:
        with path.open("rb") as file:
            return TransferManifest.from_json(file.read(MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError as error:
        raise VersionGoneError(f"{path} does not exist: the version is gone, or the folder is not shared") from error


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
    ) -> None:
        self.staging = Staging(bucket_bytes=bucket_bytes, retain=1, dtype=dtype)
        self._directory = directory
        self._host = host
        self._keep = keep
        self._kept = -1

    @property
    def address(self) -> tuple[str, int]:
        return self._host, 0

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> str:
        """Publish a version whose checkpoint will be durable. Return its checksum."""
        manifest = self.staging.stage(version, named_tensors, folder)
        write_version(self._directory, manifest)
        prune_versions(self._directory, keep=self._keep, spared={version, self._kept})
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


class CheckpointTransport:
    """A ``WeightTransport`` from checkpoint folders. It is used for one version."""

    proven = 0

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._layout: list[Bucket] = []
        self._files: ModelFiles | None = None
        self._cancelled = threading.Event()

    def open(self, source: Source, cancelled: threading.Event) -> TransferManifest:
        self._cancelled = cancelled
        folder = Path(source.folder)
        if not source.folder or not folder.is_absolute():
            raise WeightTransferError(f"the announcement names no checkpoint folder: {source.folder!r}")
        try:
            self._open.enter_context(checkpoint.held(folder))
            manifest = read_manifest(folder, source.version)
            source.check(manifest)
            self._layout = manifest.buckets()
            self._files = ModelFiles(folder)
            self._open.callback(self._files.close)
            self._files.open()
        except (CheckpointError, FileNotFoundError) as error:
            raise VersionGoneError(f"the checkpoint cannot be had any more: {error}") from error
        except OSError as error:
            raise WeightTransferError(f"{folder} cannot be read: {error}") from error
        return manifest

    def fill(self, buffers: "Iterable[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        assert self._files is not None  # noqa: S101 - ``open`` made it
        try:
            for i, (bucket, buffer) in enumerate(zip(self._layout, buffers, strict=True)):
                end = 0
                for slot in bucket.slots:
                    if self._cancelled.is_set():
                        raise LinkError("the transfer was cancelled")
                    buffer[end : slot.offset].zero_()
                    end = slot.offset + slot.meta.nbytes
                    self._files.read(slot, 0, buffer[slot.offset : end])
                arrived(i)
        except OSError as error:
            if isinstance(error, WeightTransferError):
                raise
            raise WeightTransferError(f"the checkpoint cannot be read any more: {error}") from error

    def close(self) -> None:
        self._open.close()
        self._files = None


def prove(transport: CheckpointTransport, source: Source, cancelled: threading.Event) -> TransferManifest:
    """Read a whole version and compare its digest.

    ``transport`` holds the checkpoint until it is closed, however this ends.
    """
    import torch

    manifest = transport.open(source, cancelled)
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
