"""What a directory of checkpoints holds, for people: no file but ``progress.json`` is opened."""

from dataclasses import dataclass
from pathlib import Path

from trinity_bus.training.checkpoint.folders import newest_first, step_of
from trinity_bus.training.checkpoint.manifest import Manifest, read_manifest, verify
from trinity_bus.training.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Listed:
    folder: Path
    step: int
    # None where it cannot be read
    manifest: Manifest | None
    # What is wrong with it; empty for nothing that was looked for
    problem: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all files that the listing names."""
        return 0 if self.manifest is None else sum(self.manifest.files.values())

    @property
    def is_hf(self) -> bool:
        return self.manifest is not None and "config.json" in self.manifest.files


def listed(directory: Path, *, verified: bool = False) -> list[Listed]:
    """Return the checkpoints of a directory, the oldest first; ``verified`` by the digests of all their files."""
    found = []
    for folder in reversed(newest_first(directory)):
        step, manifest, problem = step_of(folder), None, ""
        try:
            manifest = read_manifest(folder)
            if verified:
                verify(folder)
        except CheckpointError as error:
            problem = str(error)
        found.append(Listed(folder, step, manifest, problem))
    return found
