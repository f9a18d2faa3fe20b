"""Where runs are kept, how to find the newest, and how services and the program that looks at them are called."""

import itertools
import os
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from trinity_bus.errors import TrinityError

RUNS: Final = Path("runs")  # A folder for each run in it, unless told otherwise
MODEL: Final = "model"  # In a run's folder: the trained model, as a Hugging Face folder
SUMMARY: Final = "summary.json"


class NoRunError(TrinityError, LookupError):
    """No run has what is asked for."""


def program() -> str:
    """Return what to type for ``trinity-bus`` in this shell: its name where it is found by it, else its path."""
    script = Path(sys.executable).with_name("trinity-bus")
    found = shutil.which("trinity-bus")
    if found is not None and Path(found).absolute() == script.absolute():
        return "trinity-bus"
    # As the shell takes it.
    near = os.path.relpath(script)
    return shlex.quote(str(script) if near.startswith("..") or os.sep not in near else near)


def command(*arguments: str) -> list[str]:
    """Return a ``trinity-bus`` command line in this Python."""
    return [sys.executable, "-m", "workers.cli.app", *arguments]


def new_run(name: str, runs: Path = RUNS) -> Path:
    """Make the folder of a run that begins now, and return it: of this name, or of one that ends with a number.

    Names have seconds, and others may begin in the same one: whoever makes the folder has it.
    """
    for number in itertools.count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def newest_run(holding: str, runs: Path = RUNS) -> Path:
    """Return the newest run that holds a file or folder of this name."""
    found = [path for path in runs.glob("*") if (path / holding).exists()] if runs.is_dir() else []
    if not found:
        raise NoRunError(f"no run in {runs.resolve()} has {holding!r}: run the demo first, or give the folder of a run")
    return max(found, key=lambda path: (path / holding).stat().st_mtime)
