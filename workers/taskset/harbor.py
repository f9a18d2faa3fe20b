"""Harbor tasks, folders with a ``task.toml``, as rows: each names its folder, and a task carries nothing else of it.

::

    path = "bench"  -->  bench/ada/task.toml, bench/bob/task.toml  -->  rows: {"harbor": "bench/ada", ...}, ...
    a task's data, {"harbor": "bench/ada"}  --task_folder-->  its folder, for who runs it

A row has the name of the folder, from that of the description, the ``instruction`` and the tables of ``task.toml``.

Failures: a file that is a link, too large or no TOML, and a name that leads out of the root, over a link too, is a
``DatasetError``, wherever the name comes from.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trinity_bus.config.sources import MAX_TOML_BYTES, toml_of
from trinity_bus.runtime.plain_files import read_plain
from workers.taskset.description import DatasetError
from workers.taskset.rows import MAX_ROW_BYTES, Row

WORKFLOW: Final = "harbor"
NAME: Final = "harbor"  # of the folder, in rows and in a task's data
_CONFIG: Final = "task.toml"
_INSTRUCTION: Final = "instruction.md"  # a task of several steps has one for each of them instead


def task_folders(path: Path) -> list[Path]:
    """Return the folders of Harbor tasks that a path stands for, one or all in it; none, where it is something else."""
    if not path.is_dir():
        return []
    found = [path] if (path / _CONFIG).is_file() else sorted(path.iterdir())
    return [folder for folder in found if (folder / _CONFIG).is_file()]


def task_folder(root: Path, name: object) -> Path:
    """Return the folder of the task of this name; DatasetError where there is none below the root."""
    try:
        folder = (root / str(name)).resolve()
        if isinstance(name, str) and folder.is_relative_to(root.resolve()) and (folder / _CONFIG).is_file():
            return folder
    except (OSError, RuntimeError, ValueError):
        # Too long, a circle of links, or no name of a file at all.
        pass
    raise DatasetError(f"{str(name)[:200]!r} is no Harbor task below {root}")


def harbor_row(root: Path, folder: Path) -> tuple[Row, bytes]:
    """Return the row of a folder, and a digest of what it is made of."""
    name = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else str(folder)
    task_folder(root, name)
    try:
        config = read_plain(folder / _CONFIG, MAX_TOML_BYTES)
        instruction = read_plain(folder / _INSTRUCTION, MAX_ROW_BYTES) if (folder / _INSTRUCTION).exists() else b""
        row = {**toml_of(config), NAME: name, "instruction": instruction.decode()}
    except (OSError, ValueError) as error:
        raise DatasetError(f"{folder}: {error}") from error
    return row, hashlib.sha256(b"\0".join((name.encode(), config, instruction))).digest()


def harbor_fields(row: Row) -> Mapping[str, Any]:
    """Return the fields of the task of a row, where the description does not say how to make it."""
    return {"workflow": WORKFLOW, "data": {NAME: row[NAME]}}
