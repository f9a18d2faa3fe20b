"""Where runs are kept, how to find the newest, and how services and the program that looks at them are started."""

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from trinity_bus.config import CONFIG_VARIABLE, Settings, env_name, setting_fields
from trinity_bus.config.names import FILE_SUFFIX
from trinity_bus.config.sections import is_secret
from trinity_bus.errors import TrinityError

RUNS: Final = Path("runs")
"""A folder for each run in it, unless told otherwise."""
MODEL: Final = "model"
"""In a run's folder: the trained model, as a Hugging Face folder."""
SUMMARY: Final = "summary.json"


class NoRunError(TrinityError, LookupError):
    """No run has what is asked for."""


def program() -> str:
    """Return what to type for ``trinity-bus`` in this shell: its name where it is found by it, else its path."""
    script = Path(sys.executable).with_name("trinity-bus")
    found = shutil.which("trinity-bus")
    if found is not None and Path(found).absolute() == script.absolute():
        return "trinity-bus"
    near = os.path.relpath(script)
    return str(script) if near.startswith("..") or os.sep not in near else near


def command(*arguments: str) -> list[str]:
    """Return a ``trinity-bus`` command line in this Python."""
    return [sys.executable, "-m", "workers.cli.app", *arguments]


def service_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the services: this one, without settings, which are in the file, but with secrets."""
    fields = setting_fields()
    in_file = {env_name(path) for path, field in fields.items() if not is_secret(field)} | {CONFIG_VARIABLE}
    kept = {name: value for name, value in os.environ.items() if name.upper() not in in_file}
    names = {name.upper() for name in kept}
    for path in [path for path, field in fields.items() if is_secret(field)]:
        section, _, name = path.partition(".")
        secret: SecretStr | None = getattr(getattr(settings, section), name)
        if secret is not None and not {env_name(path), env_name(path) + FILE_SUFFIX} & names:
            # From the user's own file, which services do not read.
            kept[env_name(path)] = secret.get_secret_value()
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def newest_run(holding: str, runs: Path = RUNS) -> Path:
    """Return the newest run that holds a file or folder of this name.

    Raises:
        NoRunError: There is none.
    """
    found = [path for path in runs.glob("*") if (path / holding).exists()] if runs.is_dir() else []
    if not found:
        raise NoRunError(f"no run in {runs.resolve()} has {holding!r}: run the demo first, or give the folder of a run")
    return max(found, key=lambda path: (path / holding).stat().st_mtime)
