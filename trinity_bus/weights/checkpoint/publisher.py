"""The trainer's side of versions that explorers read from checkpoints.

Nothing is sent. ``stage`` packs a version once more, as on every other way, for its checksum, and writes what readers
need beside its checkpoint; see ``published``. With deltas, the version before is kept in
memory, one more copy of the model, and what has changed is written as well, where it is smaller.

Failures: those of writing files.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.model_version import ModelVersion
from trinity_bus.weights.checkpoint import published
from trinity_bus.weights.delta import Delta, encode
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, Staging
from trinity_bus.weights.transport import Method

if TYPE_CHECKING:
    import torch


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
        published.write(self._directory, manifest, base, delta)
        published.prune(self._directory, keep=self._keep, spared={version, self._kept})
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
