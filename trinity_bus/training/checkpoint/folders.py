"""The folders of a checkpoint directory: their names, their order, what makes files durable, and digests of them.

Digests find a byte that a disk has changed, at the speed of memory, and no attacker. They are XXH3 of 128 bits
(https://xxhash.com). What comes over a network, or from anybody who may lie, has SHA-256 elsewhere.
"""

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import xxhash

from trinity_bus.runtime.plain_files import open_plain, within
from trinity_bus.training.errors import CheckpointError

PROGRESS: Final = "progress.json"
# Of a Hugging Face model folder, as a checkpoint is one
CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
# The file with the optimizer's state by kind and by Hugging Face's or PEFT's name of the weight, whole; the adapters;
# and the random generators' state.
STATE: Final = "optimizer.safetensors"
# Before the names of an adapter's tensors there
ADAPTER: Final = "adapter."
PARTIAL: Final = ".partial-"
_STEP: Final = re.compile(r"step-(\d{8,})")


def latest(directory: Path, through: int | None = None) -> Path | None:
    found = (path for path in newest_first(directory) if through is None or step_of(path) <= through)
    return next(found, None)


def steps(directory: Path) -> list[int]:
    return sorted(map(step_of, newest_first(directory)))


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def of_step(directory: Path, step: int) -> Path | None:
    folder = folder_of(directory, step)
    return folder if folder.is_dir() else None


def partial_folder(directory: Path, step: int) -> Path:
    return directory / f"{PARTIAL}{folder_of(directory, step).name}"


def folder_of(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08d}"


def newest_first(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    steps = {int(match[1]): path for path in directory.iterdir() if (match := _STEP.fullmatch(path.name))}
    return [steps[step] for step in sorted(steps, reverse=True)]


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a checkpoint from being removed, for any number of readers; CheckpointError where it is gone already."""
    try:
        lock = (folder / PROGRESS).open()
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is gone") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(f"{folder} is being removed") from error
        if not folder.exists():
            # It was opened just before it went.
            raise CheckpointError(f"{folder} is gone")
        yield


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, content: str) -> None:
    """Write a small file, durably: it has the old content or the new one."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        partial.write_text(content)
        flush(partial)
        partial.rename(path)
        flush(path.parent)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


# Files that are read at once; hashing lets other threads run
_THREADS = 8


def file_digest(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the digests of files in a folder, by name; OSError where one leads out of the folder."""
    ordered = sorted(names)
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(lambda name: file_digest(within(folder / name, folder)), ordered)
        return dict(zip(ordered, found, strict=True))


def text_digest(text: str) -> str:
    return xxhash.xxh3_128(text.encode()).hexdigest()


def model_digest(folder: Path) -> str:
    """Return the digest of a Hugging Face model: its configuration and its weights, hex."""
    names = [path.name for path in folder.iterdir() if path.name == "config.json" or path.suffix == ".safetensors"]
    return text_digest("".join(f"{name} {digest}\n" for name, digest in digests(folder, names).items()))
