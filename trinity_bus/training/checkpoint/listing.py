"""What a directory of checkpoints holds, and still needs of the log: no file but ``progress.json`` is opened."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from trinity_bus.training.checkpoint.folders import PROGRESS, newest_first, step_of
from trinity_bus.training.checkpoint.manifest import Manifest, read_manifest, verify
from trinity_bus.training.errors import CheckpointError

log = logging.getLogger(__name__)


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
        return 0 if self.manifest is None else sum(self.manifest.files.values())

    @property
    def is_hf(self) -> bool:
        return self.manifest is not None and "config.json" in self.manifest.files


def listed(directory: Path, *, verified: bool = False) -> list[Listed]:
    """Return the checkpoints, the oldest first; ``verified`` by the digests of all their files."""
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


def oldest_need(directory: Path) -> int:
    """Offset in ``batches`` from which on the oldest checkpoint would go on; 0, all of it, where that is not known."""
    needs = []
    for folder in newest_first(directory):
        try:
            match json.loads((folder / PROGRESS).read_bytes()):
                case {"progress": {"batches_offset": int(offset)}}:
                    needs.append(offset)
                case _:
                    needs.append(0)
        except FileNotFoundError:
            # It was too old, and has gone meanwhile.
            continue
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s): nothing is deleted from the log that it may need", folder, error)
            needs.append(0)
    return min(needs, default=0)
