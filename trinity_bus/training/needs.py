"""What of the log the checkpoints of a folder may still need. It imports no torch."""

import json
import logging
from pathlib import Path

from trinity_bus.training.checkpoint import PROGRESS, of_step, steps

log = logging.getLogger(__name__)


def oldest_need(directory: Path) -> int:
    """Offset in ``batches`` from which on the oldest checkpoint would go on.

    All of it, 0, where there is no checkpoint, or one whose progress cannot be read: what it needs is not known.
    """
    needs = []
    for step in steps(directory):
        folder = of_step(directory, step)
        if folder is None:
            continue
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
