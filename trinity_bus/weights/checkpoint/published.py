"""What lies beside checkpoints so that explorers can take versions from them: layout, checksum, and changes.

::

    checkpoint_dir/
        step-00000011/model.safetensors      the weights; whole and durable before anything here names them
        published/
            00000011.json                    a transfer manifest: order, dtypes, bucket size, checksum
            00000011.delta                   optional: what has changed since the version published before it

A delta file is one framed message (``wire.DeltaHead``) and then the payload. Files appear by renaming, so no reader
sees half of one; a version that is published again, by another incarnation of the trainer, replaces what was there, and
who still reads the old one finds another checksum than it was told.

Failures: a manifest that is missing is a ``VersionGoneError``; one that is malformed a ``ManifestError``.
"""

import os
from collections.abc import Collection
from pathlib import Path

from trinity_bus.weights.delta import Delta
from trinity_bus.weights.errors import VersionGoneError
from trinity_bus.weights.manifest import MAX_MANIFEST_BYTES, TransferManifest
from trinity_bus.weights.wire import DELTA, DeltaHead

FOLDER = "published"
WEIGHTS = "model.safetensors"


def manifest_path(checkpoint: Path, version: int) -> Path:
    return checkpoint.parent / FOLDER / f"{version:08d}.json"


def delta_path(checkpoint: Path, version: int) -> Path:
    return manifest_path(checkpoint, version).with_suffix(".delta")


def write(directory: Path, manifest: TransferManifest, base: str, delta: Delta | None) -> None:
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


def prune(directory: Path, *, keep: int, spared: Collection[int]) -> None:
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
    """Return the head of an open delta file, and where its payload begins."""
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
