"""That all ranks of a trainer see one folder under one path: a mark that the first leaves, and the others look for.

::

    rank 0: marked(folder) --> folder/.seen-by-ranks-<64 random bits> --all have looked--> removed
    rank n: look_for(folder, mark) --there--> it sees what rank 0 sees
                                   '--not---> RankError: the folder is another one

A mark that a killed process leaves behind is empty, and means nothing to anybody.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from trinity_bus.training.errors import RankError

_MARK = re.compile(r"[0-9a-f]{16}")


@contextlib.contextmanager
def marked(folder: Path) -> Iterator[str]:
    mark = secrets.token_hex(8)
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, mark)
    path.touch()
    try:
        yield mark
    finally:
        path.unlink(missing_ok=True)


def look_for(folder: Path, mark: str) -> None:
    """RankError where the mark is not there: this machine sees another folder than rank 0 does."""
    if _MARK.fullmatch(mark) is None or not _path(folder, mark).exists():
        raise RankError(
            f"this machine does not see rank 0's {folder}: trainer.checkpoint_dir must be one folder that all "
            "machines share, under the same path"
        )


def _path(folder: Path, mark: str) -> Path:
    return folder / f".seen-by-ranks-{mark}"
