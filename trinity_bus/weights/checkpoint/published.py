"""What lies beside checkpoints so that explorers can take versions from them: layout, checksum, and changes.

::

    checkpoint_dir/
        step-00000011/model.safetensors      the weights; whole and durable before anything here names them
        published/
            00000011.json                    a transfer manifest: order, dtypes, bucket size, checksum
            00000011.delta                   optional: what has changed since the version published before it

A delta file is one framed msgpack map (``wire`` has the framing: base's checksum, version's checksum, changes) and then
the payload. Files appear by renaming, so a reader never sees half of one; a version that is published again, by another
incarnation of the trainer, replaces what was there, and who still reads the old one finds another checksum than it was
told.

Failures: a manifest that is missing is a ``VersionGoneError``; one that is malformed a ``ManifestError``.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgpack

from trinity_bus.weights.delta import Change, Delta
from trinity_bus.weights.errors import VersionGoneError, WireError
from trinity_bus.weights.manifest import MAX_MANIFEST_BYTES, TransferManifest
from trinity_bus.weights.wire import LENGTH, MAX_ANSWER_BYTES, body_length, parse_changes, parse_map

FOLDER = "published"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class DeltaHeader:
    """What a delta file says before its payload."""

    base: str
    """Checksum of what it is to be applied to."""
    target: str
    """Checksum of what it makes."""
    changes: tuple[Change, ...]
    payload_at: int
    """Offset of the payload in the file."""


def manifest_path(checkpoint: Path, version: int) -> Path:
    """Where the manifest of a version lies, by the folder of its checkpoint."""
    return checkpoint.parent / FOLDER / f"{version:08d}.json"


def delta_path(checkpoint: Path, version: int) -> Path:
    """Where its delta lies, if there is one."""
    return manifest_path(checkpoint, version).with_suffix(".delta")


def write(directory: Path, manifest: TransferManifest, base: str, delta: Delta | None) -> None:
    """Publish a version whose checkpoint is durable.

    Args:
        directory: The trainer's checkpoint directory.
        manifest: Of the version.
        base: Checksum of the version before; of no interest without a delta.
        delta: What has changed since; None for nothing of the kind.
    """
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    name = f"{manifest.version:08d}"
    stale = folder / f"{name}.delta"
    if delta is None:
        stale.unlink(missing_ok=True)
    else:
        rows = [[change.tensor, change.count, change.width] for change in delta.changes]
        head = msgpack.packb({"base": base, "target": manifest.checksum, "changes": rows})
        _write(stale, [LENGTH.pack(len(head)), head, *(memoryview(part) for part in delta.payload)])
    _write(folder / f"{name}.json", [manifest.to_json()])


def prune(directory: Path, *, keep: int, spared: Collection[int]) -> None:
    """Remove what belongs to old versions.

    Args:
        directory: The trainer's checkpoint directory.
        keep: How many of the versions with the highest numbers to keep.
        spared: Others to keep.
    """
    versions = {int(path.stem): path for path in (directory / FOLDER).glob("*.json") if path.stem.isdigit()}
    for version in sorted(versions)[:-keep]:
        if version not in spared:
            versions[version].unlink(missing_ok=True)
            versions[version].with_suffix(".delta").unlink(missing_ok=True)


def read_manifest(checkpoint: Path, version: int) -> TransferManifest:
    """Return the manifest of a version.

    Raises:
        VersionGoneError: There is none (any more).
        ManifestError: It is malformed.
    """
    path = manifest_path(checkpoint, version)
    try:
        with path.open("rb") as file:
            return TransferManifest.from_json(file.read(MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError as error:
        raise VersionGoneError(f"{path} does not exist: the version is gone, or the folder is not shared") from error


def read_delta_header(descriptor: int) -> DeltaHeader:
    """Return the head of an open delta file.

    Raises:
        WireError: It is malformed.
    """
    length = body_length(os.pread(descriptor, LENGTH.size, 0).ljust(LENGTH.size, b"\xff"), MAX_ANSWER_BYTES)
    match parse_map(os.pread(descriptor, length, LENGTH.size)):
        case {"base": str(base), "target": str(target), "changes": list(rows)}:
            return DeltaHeader(base, target, parse_changes(rows), LENGTH.size + length)
        case _:
            raise WireError("not the head of a delta")


def _write(path: Path, parts: list[bytes | memoryview]) -> None:
    partial = path.with_name(f".partial-{path.name}")
    with partial.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
