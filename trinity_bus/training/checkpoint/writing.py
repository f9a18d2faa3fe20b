"""Writing checkpoints: one trainer at a time, whole or not at all, and old ones removed."""

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trinity_bus.runtime.plain_files import within
from trinity_bus.training.checkpoint.folders import (
    CONFIG,
    INDEX,
    PARTIAL,
    PROGRESS,
    digests,
    flush,
    folder_of,
    newest_first,
    partial_folder,
)
from trinity_bus.training.checkpoint.manifest import FORMAT, Manifest, TrainingProgress, WrittenBy
from trinity_bus.training.errors import CheckpointError

_LOCK: Final = ".lock"
# What a model folder has beside its weights
_COMPANIONS: Final = ("*.json", "*.jinja", "*.txt", "*.model")


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold a checkpoint directory while this process lives, and clear what a crashed one has left behind.

    CheckpointError where another process holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{directory} is in use by another trainer: stop it, or give this one its own checkpoint_dir"
            ) from error
        for leftover in directory.glob(f"{PARTIAL}*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        yield


def begin(directory: Path, step: int) -> Path:
    """Return an empty folder to write the checkpoint of a step into; CheckpointError where the step has one already."""
    if (folder_of(directory, step)).exists():
        raise CheckpointError(f"{folder_of(directory, step)} exists: a checkpoint is never overwritten")
    directory.mkdir(parents=True, exist_ok=True)
    partial = partial_folder(directory, step)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    return partial


def commit(directory: Path, progress: TrainingProgress, written_by: WrittenBy, *, keep: int) -> Path:
    """Make the checkpoint that was begun durable and visible, then remove all but the ``keep`` newest."""
    partial, folder = partial_folder(directory, progress.step), folder_of(directory, progress.step)
    files = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
    manifest = Manifest(
        format=FORMAT,
        progress=progress,
        files=files,
        digests=digests(partial, files),
        **written_by.model_dump(),
    )
    (partial / PROGRESS).write_text(manifest.sealed().model_dump_json(indent=2) + "\n")
    reveal(partial, folder)
    for old in newest_first(directory)[keep:]:
        _remove(old)
    return folder


def reveal(partial: Path, folder: Path) -> Path:
    """Make what was written durable, and then visible, under the name of ``folder``, which is returned."""
    for path in partial.iterdir():
        flush(path)
    flush(partial)
    partial.rename(folder)
    flush(folder.parent)
    return folder


def write_companions(folder: Path, source: Path, dtype: str | None) -> None:
    """Make a folder of weights, which exists already, a model folder that transformers and vLLM read.

    ``dtype``: what ``config.json`` is to say about the weights; None for what it says already. Raises OSError, also for
    a link that leads out of the folder, and ValueError.
    """
    for pattern in _COMPANIONS:
        for path in source.glob(pattern):
            if path.name not in (INDEX, CONFIG, PROGRESS):
                shutil.copyfile(within(path, source), folder / path.name)
    _write_templates(folder, source)
    config: dict[str, Any] = json.loads(within(source / CONFIG, source).read_bytes())
    if dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = dtype.removeprefix("torch.")
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _write_templates(folder: Path, source: Path) -> None:
    """Have the tokenizer's settings name its chat templates, if it has several: a checkpoint has no folders."""
    more = sorted(source.glob("additional_chat_templates/*.jinja"))
    if more:
        main, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
        texts = {path.stem: within(path, source).read_text() for path in more}
        if main.exists():
            texts = {"default": main.read_text(), **texts}
            main.unlink()
        told: dict[str, Any] = json.loads(settings.read_bytes()) if settings.exists() else {}
        told["chat_template"] = [{"name": name, "template": text} for name, text in texts.items()]
        settings.write_text(json.dumps(told, indent=2) + "\n")


def _remove(folder: Path) -> None:
    # Unless somebody reads it
    with (folder / PROGRESS).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # Out of sight first: a crash while files go must not leave half a checkpoint under a good name.
        shutil.rmtree(folder.rename(folder.with_name(f"{PARTIAL}old-{folder.name}")))
