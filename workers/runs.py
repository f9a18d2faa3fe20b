"""Where runs are kept, and how to find the newest."""

from pathlib import Path
from typing import Final

from trinity_bus.errors import TrinityError

RUNS: Final = Path("runs")
"""A folder for each run in it, unless told otherwise."""
MODEL: Final = "model"
"""In a run's folder: the trained model, as a Hugging Face folder."""
SUMMARY: Final = "summary.json"


class NoRunError(TrinityError, LookupError):
    """No run has what is asked for."""


def newest_run(holding: str, runs: Path = RUNS) -> Path:
    """The newest run that holds a file or folder of this name.

    Raises:
        NoRunError: There is none.
    """
    found = [path for path in runs.glob("*") if (path / holding).exists()] if runs.is_dir() else []
    if not found:
        raise NoRunError(f"no run in {runs.resolve()} has {holding!r}: run the demo first, or give the folder of a run")
    return max(found, key=lambda path: (path / holding).stat().st_mtime)
