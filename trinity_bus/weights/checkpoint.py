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

Files appear by renaming, so no reader sees half of one. While a member reads, the checkpoint is *held* by a shared
lock, which ends with its process; the trainer's retention passes over it until the next time. Failures: a manifest that
is missing, or of a version that was published again, is a ``VersionGoneError`` or has another checksum; one that is
malformed is a ``ManifestError``. Where a file system knows no such locks, a checkpoint may vanish under the reader,
whose next read then fails.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.model_version import ModelVersion
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint.folders import replace
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.errors import LinkError, VersionGoneError, WeightTransferError
from trinity_bus.weights.layout import MAX_MANIFEST_BYTES, Bucket, ContentHash, TransferManifest
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, ModelFiles, Staging
from trinity_bus.weights.transport import Method, Source

if TYPE_CHECKING:
    import torch

WEIGHTS = "model.safetensors"


def _manifest(directory: Path, version: int) -> Path:
    return directory / "published" / f"{version:08d}.json"


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
        self.address = host, 0
        self._keep = keep
        self._kept = -1

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> str:
        """Publish a version whose checkpoint will be durable. Return its checksum."""
        manifest = self.staging.stage(version, named_tensors, folder)
        path = _manifest(self._directory, version)
        path.parent.mkdir(exist_ok=True)
        try:
            replace(path, manifest.to_json().decode())
        except CheckpointError as error:
            # Its checkpoint is there: it must not be told as gone.
            raise WeightTransferError(str(error)) from error
        # All go but the newest, and those that are still to be had.
        versions = {int(path.stem): path for path in path.parent.glob("*.json") if path.stem.isdigit()}
        for old in sorted(versions)[: -self._keep]:
            if old not in {version, self._kept}:
                versions[old].unlink(missing_ok=True)
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
    """A ``WeightTransport`` from checkpoint folders."""

    proven, still_uses = 0, False

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._layout: list[Bucket] = []
        self._files: ModelFiles | None = None
        self._cancelled = threading.Event()

    def open(self, source: Source, cancelled: threading.Event, has: int = 0) -> TransferManifest:
        del has  # files are read as a whole
        self._cancelled = cancelled
        folder = Path(source.folder)
        if not source.folder or not folder.is_absolute():
            raise WeightTransferError(f"the announcement names no checkpoint folder: {source.folder!r}")
        try:
            self._open.enter_context(checkpoint.held(folder))
            with _manifest(folder.parent, source.version).open("rb") as file:
                manifest = TransferManifest.from_json(file.read(MAX_MANIFEST_BYTES + 1))
            source.check(manifest)
            self._layout = manifest.buckets()
            self._files = ModelFiles(folder)
            self._open.callback(self._files.close)
            self._files.open()
        except (CheckpointError, FileNotFoundError) as error:
            raise VersionGoneError(f"the version is gone, or the folder is not shared: {error}") from error
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

    end = close


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
    manifest.check_content(hashing.hexdigest())
    return manifest
