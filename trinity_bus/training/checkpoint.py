"""Checkpoint folders that are either whole or absent.

::

    checkpoint_dir/
        .lock                       held by the one trainer that writes here
        .rollback                   the last rollback: see ``begin_rollback``
        discarded-step-00000012/    what it has discarded; to be looked at, and removed by hand
        .run                        the name of the run, given at its first start: see ``run_name``
        .told                       steps that were told of after the newest checkpoint: see ``note_told``
        .partial-step-00000012/     being written; worthless after a crash, removed at the next start
        step-00000011/              whole, durable
            progress.json           steps, version, the offset of the next batch, of which run; size and digest of
                                    every other file, and a seal over all that
            config.json, tokenizer  \
            model.safetensors       / a Hugging Face model folder: transformers and vLLM read it as it is
            optimizer-00000-of-00001.safetensors    optimizer and generator state of each rank
        published/                  what explorers need to take weights from here; ``weights.checkpoint.published``

A checkpoint is written into a ``.partial`` folder, every file and the folder are flushed to the disk, and one rename
makes it visible. After a crash at any instant the newest ``step`` folder is therefore whole, and it holds the weights
*and* the offset that belong together. There is no pointer to the newest: the listing is it. Older ones go only after
the new one is durable, and never the last. An explorer that reads one holds it by a shared lock (``held``): it is
passed over and goes when the next one is written. A reader that comes as it goes is refused, and takes the newest.

Only safetensors and JSON are written and read; nothing in a checkpoint can run code.

Many ranks: all write their own optimizer file into the same ``.partial`` folder (on a file system that they share),
rank 0 alone writes the rest and renames, with barriers before and after. A checkpoint is read by as many ranks as wrote
it, with the same tensor parallelism; only the model in it is free of the layout.

What a disk or a memory has changed is found: every file has a digest, which is compared before it is used (by the rank
that reads it). A checkpoint says which log, namespace and base model it belongs to; a trainer of another run refuses
it. It says with which settings it was trained, and a trainer says what is different now (``resume``). All these are
absent from checkpoints of the first programs, and then not compared.

This module knows folders and progress; what is in the files is ``engine``'s. It imports no torch.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.skipped import MAX_SKIPPED, Rollback, SkippedBatch
from trinity_bus.training.digests import digests, text_digest
from trinity_bus.training.errors import CheckpointError
from trinity_bus.training.resume import Shaping

PROGRESS: Final = "progress.json"
FORMAT: Final = 1
_STEP: Final = re.compile(r"step-(\d{8,})")
PARTIAL: Final = ".partial-"
_LOCK: Final = ".lock"
_TOLD: Final = ".told"
_RUN: Final = ".run"
_ROLLBACK: Final = ".rollback"


class RunIdentity(BaseModel):
    """Which run a checkpoint belongs to."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cluster: str
    """Kafka's id of the cluster."""
    batches: str
    """Kafka's id of the topic ``batches``: another one after it was deleted and made anew."""
    namespace: str
    model: str
    """Digest of the model that training began with."""


class TrainingProgress(BaseModel):
    """How far training has come: what a restart needs to go on where it stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: Annotated[int, Field(ge=0)] = 0
    """Steps trained."""
    version: Annotated[int, Field(ge=0)] = 0
    """Version of these weights."""
    batches_offset: Annotated[int, Field(ge=0)] = 0
    """Offset in ``batches`` of the next record to read."""
    sequence: Annotated[int, Field(ge=0)] = 0
    """Sequence of the last batch trained on."""
    trained_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens that the loss was over, since the start."""
    run: RunIdentity | None = None
    settings: Shaping | None = None
    """With which it was trained last; None in checkpoints of the first programs."""
    skipped: Annotated[tuple[SkippedBatch, ...], Field(max_length=MAX_SKIPPED)] = ()
    """Batches that were passed over because an operator said so, the last ones; in the order of their steps."""

    def passed_over(self, batch_id: str, reason: str) -> "TrainingProgress":
        """Return the same after a step that passed over a batch. To be called when the step is counted."""
        skipped = SkippedBatch(batch_id=batch_id, step=self.step, reason=reason)
        return self.model_copy(update={"skipped": (*self.skipped, skipped)[-MAX_SKIPPED:]})


class WrittenBy(BaseModel):
    """What the optimizer's state in a checkpoint depends on: who reads it must be the same."""

    model_config = ConfigDict(frozen=True)

    engine: str = "megatron"
    """As ``trainer.engine`` has it."""
    world_size: int = 1
    """Ranks that write."""
    tensor_parallel: int = 1
    """Over how many of them layers are split."""
    pipeline_parallel: int = 1
    """Over how many of them layers are distributed."""
    virtual_pipeline: int = 1
    """In how many stretches each."""
    context_parallel: int = 1
    """Over how many of them samples are split."""
    expert_parallel: int = 1
    """Over how many of them experts are distributed."""
    distributed_optimizer: bool = False
    """As the setting has it."""
    dtype: str
    """Of the weights."""


class Told(BaseModel):
    """``.told``: what others have heard of steps that are in no checkpoint."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    after: int = 0
    """Step of the checkpoint that was the newest then; 0 without one."""
    sequence: int = 0
    """Of the last batch that was told of."""
    skipped: frozenset[str] = frozenset()
    """Ids of the batches after that checkpoint that were passed over."""


class _RollbackNote(BaseModel):
    """``.rollback``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rollback: Rollback
    done: bool


class _Manifest(WrittenBy):
    """``progress.json``: written last, and with it the checkpoint is complete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    progress: TrainingProgress
    files: dict[str, int]
    """Every other file and its size in bytes."""
    digests: dict[str, str] = {}
    """Of the same files."""
    seal: str = ""
    """Digest of all the above."""

    def sealed(self) -> "_Manifest":
        """Return the same with its seal."""
        return self.model_copy(update={"seal": _seal(self.model_dump(mode="json"))})


def _seal(manifest: dict[str, Any]) -> str:
    unsealed = {name: value for name, value in manifest.items() if name != "seal"}
    return text_digest(json.dumps(unsealed, sort_keys=True))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold a checkpoint directory for one process, and clear what a crashed one has left behind.

    The operating system releases the hold with the process, however that ends.

    Raises:
        CheckpointError: Another process holds it.
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
    """Return an empty folder to write the checkpoint of a step into.

    Raises:
        CheckpointError: The step has a checkpoint already.
    """
    if (_folder(directory, step)).exists():
        raise CheckpointError(f"{_folder(directory, step)} exists: a checkpoint is never overwritten")
    directory.mkdir(parents=True, exist_ok=True)
    partial = partial_folder(directory, step)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    return partial


def partial_folder(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step is written before it is whole."""
    return directory / f"{PARTIAL}{_folder(directory, step).name}"


def commit(directory: Path, progress: TrainingProgress, written_by: WrittenBy, *, keep: int) -> Path:
    """Make the checkpoint that was begun durable and visible, then remove those that are too old.

    Args:
        directory: As given to :func:`begin`.
        progress: What to record; its step names the folder.
        written_by: Whose ranks have written into it.
        keep: How many checkpoints to keep, this one included; at least 1.

    Returns:
        The folder.
    """
    partial, folder = partial_folder(directory, progress.step), _folder(directory, progress.step)
    files = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
    manifest = _Manifest(
        format=FORMAT,
        progress=progress,
        files=files,
        digests=digests(partial, files),
        **written_by.model_dump(),
    )
    (partial / PROGRESS).write_text(manifest.sealed().model_dump_json(indent=2) + "\n")
    for path in partial.iterdir():
        _flush(path)
    _flush(partial)
    partial.rename(folder)
    (directory / _TOLD).unlink(missing_ok=True)
    _flush(directory)
    for old in _newest_first(directory)[keep:]:
        _remove(old)
    return folder


def begin_rollback(directory: Path, rollback: Rollback) -> None:
    """Write, durably, that what came after a version is discarded. A new incarnation of the trainer sees to it.

    ::

        (none) --begin_rollback--> BEGUN --finish_rollback--> DONE --begin_rollback--> BEGUN

    Killed in BEGUN, the next incarnation finishes it: it is the first thing that one does.

    Raises:
        CheckpointError: The version has no checkpoint.
    """
    if of_step(directory, rollback.to) is None:
        raise CheckpointError("its checkpoint is gone; trainer.keep_checkpoints says how many are kept")
    _write_rollback(directory, _RollbackNote(rollback=rollback, done=False))


def finish_rollback(directory: Path) -> Rollback | None:
    """Discards what a rollback that was begun says. To be called before the newest checkpoint is looked for.

    Returns:
        The last rollback of this lineage; None where there was none.

    Raises:
        CheckpointError: What is written of it is damaged.
    """
    path = directory / _ROLLBACK
    try:
        note = _RollbackNote.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not note.done:
        for folder in _newest_first(directory):
            if int(folder.name.removeprefix("step-")) > note.rollback.to:
                discarded = folder.with_name(f"discarded-{folder.name}")
                shutil.rmtree(discarded, ignore_errors=True)
                folder.rename(discarded)
        (directory / _TOLD).unlink(missing_ok=True)
        _flush(directory)
        _write_rollback(directory, note.model_copy(update={"done": True}))
    return note.rollback


def _write_rollback(directory: Path, note: _RollbackNote) -> None:
    _replace(directory / _ROLLBACK, note.model_dump_json())


def _replace(path: Path, content: str) -> None:
    """Write a small file, durably: it has the old content or the new one."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    partial.write_text(content)
    _flush(partial)
    partial.rename(path)
    _flush(path.parent)


def run_name(directory: Path) -> str:
    """Return what this directory's run is called, in records that outlive a process; a new one where it has no name.

    Raises:
        CheckpointError: It has one that is none.
    """
    path = directory / _RUN
    if not path.exists():
        _replace(path, uuid.uuid4().hex)
    name = path.read_text()
    if not re.fullmatch(r"[0-9a-f]{32}", name):
        raise CheckpointError(f"{path} is damaged: remove it to give the run another name")
    return name


def note_told(directory: Path, progress: TrainingProgress) -> None:
    """Note, durably, that others are about to hear of a step which has no checkpoint.

    Args:
        directory: Of the checkpoints.
        progress: After the step.
    """
    after = max(steps(directory), default=0)
    skipped = frozenset(batch.batch_id for batch in progress.skipped if batch.step > after)
    note = Told(after=after, sequence=progress.sequence, skipped=skipped)
    _replace(directory / _TOLD, note.model_dump_json())


def read_told(directory: Path) -> Told:
    """Return what others have heard of the steps after the newest checkpoint.

    Raises:
        CheckpointError: The note is damaged.
    """
    path = directory / _TOLD
    try:
        note = Told.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Told()
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it to go on from the newest checkpoint") from error
    # One of an older checkpoint says nothing: what came after it is in the newest.
    return note if note.after == max(steps(directory), default=0) else Told()


def _remove(folder: Path) -> None:
    """Remove a checkpoint, unless somebody reads it."""
    with (folder / PROGRESS).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # Out of sight first: a crash while files go must not leave half a checkpoint under a good name.
        shutil.rmtree(folder.rename(folder.with_name(f"{PARTIAL}old-{folder.name}")))


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a checkpoint from being removed within the context, for any number of readers.

    Raises:
        CheckpointError: It is gone, or being removed.
    """
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


def latest(directory: Path) -> Path | None:
    """Return the newest checkpoint, or None where there is none."""
    return next(iter(_newest_first(directory)), None)


def steps(directory: Path) -> list[int]:
    """Return the steps that have a checkpoint, oldest first."""
    return sorted(int(path.name.removeprefix("step-")) for path in _newest_first(directory))


def of_step(directory: Path, step: int) -> Path | None:
    """Return the checkpoint of a step, or None where there is none."""
    folder = _folder(directory, step)
    return folder if folder.is_dir() else None


def read_progress(folder: Path, reader: WrittenBy) -> TrainingProgress:
    """Read a checkpoint's progress and check that the rest is there and fits; :func:`verify` looks into files.

    Raises:
        CheckpointError: It is damaged, or was written by another engine or layout.
    """
    manifest = _manifest(folder)
    try:
        sizes = {name: (folder / Path(name).name).stat().st_size for name in manifest.files}
    except OSError as error:
        raise _damaged(folder, f"{error.filename} cannot be read, {error.strerror}") from error
    if sizes != manifest.files:
        wrong = sorted(name for name, size in manifest.files.items() if sizes[name] != size)
        raise _damaged(folder, f"{', '.join(wrong)} changed size")
    written = {"format": manifest.format, **{name: getattr(manifest, name) for name in WrittenBy.model_fields}}
    wanted = {"format": FORMAT, **reader.model_dump()}
    if written != wanted:
        differ = ", ".join(
            f"{name}={written[name]}, here {wanted[name]}" for name in wanted if written[name] != wanted[name]
        )
        raise CheckpointError(
            f"{folder} was written with {differ}: start with the same, or with this folder as model_path and an empty "
            "checkpoint_dir"
        )
    return manifest.progress


def verify(folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> None:
    """Check that files hold what was written.

    Args:
        folder: Of a checkpoint.
        wanted: Of which files, by name.

    Raises:
        CheckpointError: One does not.
    """
    written = {name: digest for name, digest in _manifest(folder).digests.items() if wanted(name)}
    try:
        found = digests(folder, [Path(name).name for name in written])
    except OSError as error:
        raise _damaged(folder, f"{error.filename} cannot be read, {error.strerror}") from error
    changed = sorted(name for name, digest in written.items() if found[Path(name).name] != digest)
    if changed:
        raise _damaged(folder, f"{', '.join(changed)} is not what was written")


def check_run(folder: Path, found: RunIdentity | None, ours: RunIdentity) -> None:
    """Pass a checkpoint of this run, and one that does not say of which it is.

    Args:
        folder: Of the checkpoint, for the message.
        found: What it says.
        ours: This run.

    Raises:
        CheckpointError: It is of another run.
    """
    if found is None or found == ours:
        return
    said, now = found.model_dump(), ours.model_dump()
    differ = [name for name in now if said[name] != now[name]]
    other = ", ".join(f"{name} {said[name]}, here {now[name]}" for name in differ)
    fix = (
        "set TRINITY_BUS_MESH__MODEL_PATH to the model that it began with"
        if differ == ["model"]
        else "give this run its own TRINITY_BUS_TRAINER__CHECKPOINT_DIR"
    )
    raise CheckpointError(
        f"{folder} is of another run ({other}): {fix}; to begin a run with these weights, set TRINITY_BUS_TRAINER__"
        "MODEL_PATH to that folder, with an empty checkpoint_dir"
    )


def _manifest(folder: Path) -> _Manifest:
    try:
        content = (folder / PROGRESS).read_bytes()
        manifest = _Manifest.model_validate_json(content)
    except OSError as error:
        raise _damaged(folder, f"{error.filename} cannot be read, {error.strerror}") from error
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(map(str, detail["loc"])) or "content"
        raise _damaged(folder, f"{PROGRESS}, {where}: {detail['msg']}") from error
    if manifest.seal and manifest.seal != _seal(json.loads(content)):
        raise _damaged(folder, f"{PROGRESS} is not what was written")
    return manifest


def _damaged(folder: Path, what: str) -> CheckpointError:
    older = [other for other in _newest_first(folder.parent) if other.name < folder.name]
    way = (
        f"remove it to go on from the one before it, {older[0].name}"
        if older
        else "there is none before it; remove it to begin anew"
    )
    return CheckpointError(f"{folder} is damaged: {what}; {way}")


def _folder(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08d}"


def _newest_first(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    steps = {int(match[1]): path for path in directory.iterdir() if (match := _STEP.fullmatch(path.name))}
    return [steps[step] for step in sorted(steps, reverse=True)]
