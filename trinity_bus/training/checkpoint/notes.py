"""Small files beside the checkpoints: the run's name, whom it follows, the last rollback, what others have heard."""

import re
import uuid
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.record import Rollback
from trinity_bus.training.checkpoint.folders import flush, newest_first, of_step, replace, step_of
from trinity_bus.training.checkpoint.manifest import Shaping, TrainingProgress
from trinity_bus.training.errors import CheckpointError

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
