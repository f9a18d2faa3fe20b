"""Small files beside the checkpoints: the run's name, the last rollback, and what others have heard."""

import re
import shutil
import uuid
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.skipped import Rollback
from trinity_bus.training.checkpoint.folders import flush, newest_first, of_step, replace
from trinity_bus.training.checkpoint.progress import TrainingProgress
from trinity_bus.training.errors import CheckpointError

_TOLD: Final = ".told"
_RUN: Final = ".run"
_ROLLBACK: Final = ".rollback"


class Told(BaseModel):
    """``.told``: what others have heard of steps that were in no checkpoint."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sequence: int = 0
    """Of the last batch that was told of; those before it were, too."""
    skipped: frozenset[str] = frozenset()
    """Ids of those that were passed over, of the last ones."""


class _RollbackNote(BaseModel):
    """``.rollback``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rollback: Rollback
    done: bool


def run_name(directory: Path) -> str:
    """Return what this directory's run is called, in records that outlive a process; a new one where it has no name.

    Raises:
        CheckpointError: It has one that is none.
    """
    path = directory / _RUN
    if not path.exists():
        replace(path, uuid.uuid4().hex)
    name = path.read_text()
    if not re.fullmatch(r"[0-9a-f]{32}", name):
        raise CheckpointError(f"{path} is damaged: remove it to give the run another name")
    return name


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
        for folder in newest_first(directory):
            if int(folder.name.removeprefix("step-")) > note.rollback.to:
                discarded = folder.with_name(f"discarded-{folder.name}")
                shutil.rmtree(discarded, ignore_errors=True)
                folder.rename(discarded)
        (directory / _TOLD).unlink(missing_ok=True)
        flush(directory)
        _write_rollback(directory, note.model_copy(update={"done": True}))
    return note.rollback


def _write_rollback(directory: Path, note: _RollbackNote) -> None:
    replace(directory / _ROLLBACK, note.model_dump_json())


def note_told(directory: Path, progress: TrainingProgress) -> None:
    """Note, durably, that others are about to hear of a step which has no checkpoint.

    Args:
        directory: Of the checkpoints.
        progress: After the step.

    Raises:
        CheckpointError: It cannot be written.
    """
    skipped = frozenset(batch.batch_id for batch in progress.skipped)
    replace(directory / _TOLD, Told(sequence=progress.sequence, skipped=skipped).model_dump_json())


def read_told(directory: Path) -> Told:
    """Return what others have heard of steps; of those that are in a checkpoint nobody asks.

    Raises:
        CheckpointError: The note is damaged.
    """
    path = directory / _TOLD
    try:
        return Told.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Told()
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it to go on from the newest checkpoint") from error
