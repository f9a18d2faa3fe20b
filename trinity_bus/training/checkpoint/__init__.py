"""Checkpoint folders that are either whole or absent.

::

    checkpoint_dir/
        .lock                       held by the one trainer that writes here
        .rollback                   the last rollback: see ``begin_rollback``
        discarded-step-00000012/    what it has discarded; to be looked at, and removed by hand
        .run                        the name of the run, given at its first start: see ``run_name``
        .follows                    on whose steps a shadow or a replay trains: see ``note_follows``
        .told                       steps that were told of before they were in a checkpoint: see ``note_told``
        .mirror                     of what ``trainer.checkpoint_url`` was a copy: see ``mirror``
        .partial-step-00000012/     being written; worthless after a crash, removed at the next start
        step-00000011/              whole, durable
            progress.json           steps, version, the offset of the next batch, of which run; size and digest of
                                    every other file, and a seal over all that
            config.json, tokenizer  \
            model.safetensors       / a Hugging Face model folder: transformers and vLLM read it as it is
            optimizer.safetensors   state of optimizer and random generators
        published/                  what explorers need to take weights from here; ``weights.checkpoint``

A checkpoint is written into a ``.partial`` folder, every file and the folder are flushed to the disk, and one rename
makes it visible. After a crash at any instant the newest ``step`` folder is therefore whole, and it holds the weights
*and* the offset that belong together. Older ones go only after the new one is durable, and never the last. An explorer
that reads one holds it by a shared lock (``held``): it goes when the next one is written. A reader that comes as it
goes is refused, and takes the newest. Only safetensors and JSON are written and read; nothing in it can run code.

Many ranks: rank 0 gathers all and alone writes. Weights and the optimizer's state are whole, under the weights' Hugging
Face names, so a checkpoint is read in any layout. Every file has a digest, which rank 0 compares before it is used.

Digests find a byte that a disk has changed, at the speed of memory, and no attacker. They are XXH3 of 128 bits
(https://xxhash.com). What comes over a network, or from anybody who may lie, has SHA-256 elsewhere.

A checkpoint says which log, namespace and base model it belongs to (``RunIdentity``); a trainer of another run refuses
it, and so does one that its optimizer does not fit (``WrittenBy``). It keeps the settings that shape
training. All these are absent from checkpoints of the first programs, and then not compared::

    settings --shaping--> names and plain values, in every checkpoint of the run (``TrainingProgress.settings``)
    a checkpoint's, and ours --differences--> a line for each, said before anything is loaded; or a refusal

Every setting of ``trainer`` counts but those that are listed here with a reason, so a new one counts until somebody
says that it does not. docs/operations.md lists what each change comes to. No secret is kept: the one of ``trainer`` is
left out, and of the texts in ``trainer.objective_options`` and ``trainer.optimizer_options``, which are for programs
that are not known here, a checkpoint holds digests. This package imports no torch.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Final

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas import StepBegun
from schemas.record import MAX_SKIPPED, Rollback, SkippedBatch
from trinity_bus.config import MeshSettings, TrainerSettings
from trinity_bus.runtime.plain_files import open_plain, read_plain, within
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


# -------------- progress.json: how far training has come, what is in a checkpoint, by whom, and whether it is still so

type Value = bool | int | float | str | None
type Shaping = dict[str, Value]

_MODEL = "mesh.model"
_OPTIONS = ("objective_options", "optimizer_options")
_RANK, _ALPHA = "trainer.lora_rank", "trainer.lora_alpha"
_MESH = {"model", "max_model_len", "max_tokens"}
_TELLS_WHERE_AND_WHEN = {
    "stages",  # what a stage says is in its own settings
    "name",
    "role",
    "shadows",
    "checkpoint_dir",
    "checkpoint_url",
    "publish",
    "adapter_rank",
    "checkpoint_interval",
    "keep_checkpoints",
    "save_as_hf",
    "export_dir",
    "total_steps",
    "heartbeat_s",
    "token_figures",
    "host",
    "weights_port",
    "ranks_host",
    "ranks_port",
    "ranks_key",
    "bucket_mib",
}
_COMPARED_ELSEWHERE = {
    "model_path",  # by its content, in the run's identity
    "max_tokens",  # as ``mesh.max_tokens``
    "dtype",  # as it was resolved; with all below, in ``WrittenBy``
    "engine",
}


def shaping(mesh: MeshSettings, trainer: TrainerSettings) -> Shaping:
    own = trainer.model_dump(mode="json", exclude={*_TELLS_WHERE_AND_WHEN, *_COMPARED_ELSEWHERE, *_OPTIONS})
    return {
        **{f"mesh.{name}": value for name, value in mesh.model_dump(mode="json", include=_MESH).items()},
        **{f"trainer.{name}": value for name, value in own.items()},
        **{
            f"trainer.{options}.{name}": _option(value)
            for options in _OPTIONS
            for name, value in sorted(getattr(trainer, options).items())
        },
    }


def _option(value: Any) -> Value:
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, str):
        return f"text {text_digest(value)[:12]}"
    # JSON has no word for what is not finite.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def differences(written: Mapping[str, Value], ours: Mapping[str, Value]) -> list[str]:
    """Return a line for each; CheckpointError where the checkpoint cannot be gone on from with ours."""
    names = [*ours, *(name for name in written if name not in ours)]
    lines = [
        f"{name}: {_shown(name, written)} -> {_shown(name, ours)}"
        for name in names
        if (name in written) != (name in ours) or written[name] != ours[name]
    ]
    if written.get(_RANK) and written.get(_ALPHA) != ours.get(_ALPHA):
        raise CheckpointError(
            f"{_ALPHA}: {_shown(_ALPHA, written)} -> {_shown(_ALPHA, ours)}: the adapters were trained with the "
            "former: set it again, or start with an exported model as TRINITY_BUS_TRAINER__MODEL_PATH and an empty "
            "checkpoint_dir"
        )
    if _MODEL in written and written[_MODEL] != ours[_MODEL]:
        raise CheckpointError(
            f"{lines[0]}: the versions of this run are known by the former name; set it again, or give the new model "
            "its own TRINITY_BUS_MESH__NAMESPACE and an empty TRINITY_BUS_TRAINER__CHECKPOINT_DIR"
        )
    return lines


def _shown(name: str, settings: Mapping[str, Any]) -> str:
    if name not in settings:
        return "unset" if name.startswith(tuple(f"trainer.{options}." for options in _OPTIONS)) else "not recorded"
    value = settings[name]
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)


FORMAT: Final = 2
_MAX_BYTES: Final = 64 << 20


class RunIdentity(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    cluster: str
    # Another one after the topic was deleted and made anew
    batches: str
    namespace: str
    # Digest of the model that training began with
    model: str


class TrainingProgress(BaseModel):
    """How far training has come: what a restart needs to go on where it stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: Annotated[int, Field(ge=0)] = 0
    version: Annotated[int, Field(ge=0)] = 0
    # Of the next record to read
    batches_offset: Annotated[int, Field(ge=0)] = 0
    # Of the last batch trained on
    sequence: Annotated[int, Field(ge=0)] = 0
    # That the loss was over, since the start
    trained_tokens: Annotated[int, Field(ge=0)] = 0
    # How many demonstrations or preferences there were to choose from when the first step began; 0 where none is
    # learned from.
    examples: Annotated[int, Field(ge=0)] = 0
    run: RunIdentity | None = None
    # The model that training began with, ``organization/name@commit``, where it is from a hub
    source: str | None = None
    # With which it was trained last; None in checkpoints of the first programs
    settings: Shaping | None = None
    # Batches that were passed over because an operator said so, the last ones; in the order of their steps.
    skipped: Annotated[tuple[SkippedBatch, ...], Field(max_length=MAX_SKIPPED)] = ()

    def after(self, begun: StepBegun) -> "TrainingProgress":
        """Add what only the record of the step that an engine has made knows."""
        skipped = self.skipped
        if begun.skipped is not None:
            passed_over = SkippedBatch(batch_id=begun.batch_id, step=self.step, reason=begun.skipped)
            skipped = (*skipped, passed_over)[-MAX_SKIPPED:]
        return self.model_copy(
            update={
                "batches_offset": begun.next_offset,
                "sequence": begun.sequence,
                "examples": begun.examples,
                "skipped": skipped,
            }
        )


class WrittenBy(BaseModel):
    """What the optimizer's state in a checkpoint depends on: who reads it must be the same."""

    model_config = ConfigDict(frozen=True)

    # As ``trainer.engine`` has it
    engine: str = "megatron"
    dtype: str


class Manifest(WrittenBy):
    """``progress.json``: written last, and with it the checkpoint is complete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    progress: TrainingProgress
    # Every other file and its size in bytes
    files: dict[str, int]
    # Of the same files
    digests: dict[str, str] = Field(default_factory=dict)
    # Digest of all the above
    seal: str = ""

    def sealed(self) -> "Manifest":
        return self.model_copy(update={"seal": _seal(self.model_dump(mode="json"))})


def read_progress(folder: Path, reader: WrittenBy) -> TrainingProgress:
    """Read a checkpoint's progress, and check that the rest is there and fits; :func:`verify` looks into files."""
    manifest = read_manifest(folder)
    try:
        sizes = {name: (folder / Path(name).name).lstat().st_size for name in manifest.files}
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
    """Check that the ``wanted`` files hold what was written; CheckpointError where one does not."""
    written = {name: digest for name, digest in read_manifest(folder).digests.items() if wanted(name)}
    try:
        found = digests(folder, [Path(name).name for name in written])
    except OSError as error:
        raise _damaged(folder, f"{error.filename} cannot be read, {error.strerror}") from error
    changed = sorted(name for name, digest in written.items() if found[Path(name).name] != digest)
    if changed:
        raise _damaged(folder, f"{', '.join(changed)} is not what was written")


def check_run(folder: Path, found: RunIdentity | None, ours: RunIdentity) -> None:
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


def read_manifest(folder: Path) -> Manifest:
    try:
        content = read_plain(folder / PROGRESS, _MAX_BYTES)
        manifest = Manifest.model_validate_json(content)
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
    older = [other for other in newest_first(folder.parent) if other.name < folder.name]
    way = (
        f"remove it to go on from the one before it, {older[0].name}"
        if older
        else "there is none before it; remove it to begin anew"
    )
    return CheckpointError(f"{folder} is damaged: {what}; {way}")


def _seal(manifest: dict[str, Any]) -> str:
    unsealed = {name: value for name, value in manifest.items() if name != "seal"}
    return text_digest(json.dumps(unsealed, sort_keys=True))


# ---------------------------------------------------------------------------------------- notes beside the checkpoints

_TOLD: Final = ".told"
RUN: Final = ".run"
_ROLLBACK: Final = ".rollback"
_FOLLOWS: Final = ".follows"
_MIRROR: Final = ".mirror"
# What a copy of the directory needs, beside the run's name and its checkpoints
NOTES: Final = (_TOLD, _ROLLBACK, _FOLLOWS)


class AnnouncedSteps(BaseModel):
    """``.told``: what others have heard of steps that were in no checkpoint."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    # Of the last batch that was told of; those before it were, too
    sequence: int = 0
    # Ids of those that were passed over, of the last ones
    skipped: frozenset[str] = frozenset()


class Follows(BaseModel):
    """``.follows``: on whose steps the checkpoints beside it were trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Its name on ``steps``
    trainer: str
    # Which of its runs
    run: str
    # The first step that is trained with ``settings``
    from_step: int = 1
    # Of a replay; a shadow may change its mind
    settings: Shaping | None = None


class MirrorNote(BaseModel):
    """``.mirror``: what is known here of ``trainer.checkpoint_url``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # That this folder was of
    lives: tuple[str, ...] = ()
    # Offset in ``batches`` from which on the oldest checkpoint there would go on
    needs: int = 0
    # Step of the newest checkpoint there
    newest: int = -1


class _RollbackNote(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    rollback: Rollback
    done: bool


def run_name(directory: Path) -> str:
    """Return what this directory's run is called, in records that outlive a process; it is given a name at first."""
    if not (directory / RUN).exists():
        replace(directory / RUN, uuid.uuid4().hex)
    return read_run(directory)


def read_run(directory: Path) -> str:
    path = directory / RUN
    try:
        name = path.read_text()
    except OSError as error:
        raise CheckpointError(f"{directory} is of no trainer: {path} cannot be read, {error.strerror}") from error
    if not re.fullmatch(r"[0-9a-f]{32}", name):
        raise CheckpointError(f"{path} is damaged: remove it to give the run another name")
    return name


def read_follows(directory: Path) -> Follows | None:
    return _read(Follows, directory / _FOLLOWS)


def note_follows(directory: Path, follows: Follows) -> None:
    if newest_first(directory):
        raise CheckpointError(
            f"{directory} has checkpoints of a trainer that follows nobody: give this one its own checkpoint_dir"
        )
    replace(directory / _FOLLOWS, follows.model_dump_json())


def begin_rollback(directory: Path, rollback: Rollback) -> None:
    """Write, durably, that what came after a version is discarded; CheckpointError where it has no checkpoint.

    ::

        (none) --begin_rollback--> BEGUN --finish_rollback--> DONE --begin_rollback--> BEGUN

    Killed in BEGUN, the next incarnation finishes it: it is the first thing that one does.
    """
    if of_step(directory, rollback.to) is None:
        raise CheckpointError("its checkpoint is gone; trainer.keep_checkpoints says how many are kept")
    _write_rollback(directory, _RollbackNote(rollback=rollback, done=False))


def finish_rollback(directory: Path) -> Rollback | None:
    """Discard what a rollback that was begun says, and return the last one of this lineage."""
    note = _read(_RollbackNote, directory / _ROLLBACK)
    if note is None:
        return None
    if not note.done:
        discard(directory, after=note.rollback.to)
        _write_rollback(directory, note.model_copy(update={"done": True}))
    return note.rollback


def rolls_back_to(notes: Mapping[str, str]) -> int | None:
    """Return the step after which a rollback discards that these notes say is not finished."""
    if _ROLLBACK not in notes:
        return None
    try:
        note = _RollbackNote.model_validate_json(notes[_ROLLBACK])
    except ValidationError as error:
        raise CheckpointError(f"the note of a rollback is damaged: {error.errors()[0]['msg']}") from error
    return None if note.done else note.rollback.to


def discard(directory: Path, *, after: int) -> None:
    """Put the checkpoints of later steps aside, and forget what was told of steps."""
    for folder in newest_first(directory):
        if step_of(folder) > after:
            names = (f"discarded-{folder.name}{again}" for again in chain([""], map("-{}".format, count(2))))
            folder.rename(next(path for name in names if not (path := directory / name).exists()))
    (directory / _TOLD).unlink(missing_ok=True)
    flush(directory)


def _write_rollback(directory: Path, note: _RollbackNote) -> None:
    replace(directory / _ROLLBACK, note.model_dump_json())


def note_told(directory: Path, progress: TrainingProgress) -> None:
    skipped = frozenset(batch.batch_id for batch in progress.skipped)
    replace(directory / _TOLD, AnnouncedSteps(sequence=progress.sequence, skipped=skipped).model_dump_json())


def read_told(directory: Path) -> AnnouncedSteps:
    return (
        _read(AnnouncedSteps, directory / _TOLD, "; remove it to go on from the newest checkpoint") or AnnouncedSteps()
    )


def note_mirror(directory: Path, note: MirrorNote) -> None:
    replace(directory / _MIRROR, note.model_dump_json())


def read_mirror(directory: Path) -> MirrorNote:
    way = "; remove it to go on from what is at trainer.checkpoint_url"
    return _read(MirrorNote, directory / _MIRROR, way) or MirrorNote()


def _read[M: BaseModel](kind: type[M], path: Path, way: str = "") -> M | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{path} is damaged ({error}){way}") from error


# ------------------------------------------------------------------------------------------------------------- writing

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
    config: dict[str, Any] = json.loads(within(source / CONFIG, source).read_bytes())
    if dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = dtype.removeprefix("torch.")
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _remove(folder: Path) -> None:
    # Unless somebody reads it
    with (folder / PROGRESS).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # Out of sight first: a crash while files go must not leave half a checkpoint under a good name.
        shutil.rmtree(folder.rename(folder.with_name(f"{PARTIAL}old-{folder.name}")))
