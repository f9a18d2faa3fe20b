"""Checkpoints at a URL of fsspec, beside those in the folder: what a trainer goes on from on another machine.

::

    checkpoint_url/
        lives/00000003-<random>              of one start of a trainer, a *life*: a claim, or its index
        pieces/00000003-<random>/<SHA-256>   4 MiB of a file, or what is left of it

    index: the run's name, the notes beside the checkpoints, and which pieces of which life each checkpoint is made of

    FREE --claim, whose number is higher than all--> CLAIMED
    CLAIMED --the folder is empty, or another life has gone on since--> its checkpoints are set aside, and the newest
                                                                        one there that no rollback discards is fetched
                                                                        with the notes
    CLAIMED --index: what was there, up to the folder's newest step--> SERVING
    SERVING --a newer checkpoint is whole in the folder--> pieces that this life has not written --> index, with the
                                                           ``keep`` newest --> what no index entry needs is removed
    any --a life with a higher number is there--> FENCED, and the trainer ends

What is at the URL is the index of the highest life that has one. It is one object, written again as a whole after the
pieces: so a checkpoint is there whole or not at all, and one that was rolled back goes with the index of the next life.

*Two trainers.* A life writes under its own names alone, so nothing that a paused one still writes is ever read. It
looks for a higher claim between its index and each removal. The higher life reads indexes after its claim, so it has
seen whatever index a removal was decided by. Two that claim the same number are told apart by the random part.

*The folder.* ``.mirror`` names the lives that this folder was of. Where another life is at the URL, the trainer has
gone on elsewhere since, and the URL counts; what is in the folder is set aside as by a rollback, never removed. So
does a newer step there than the note knows of: the folder is a copy of an earlier time. The note also has the offset of
``batches`` that the oldest checkpoint there needs, so that the log is kept from there on.

===========================  =========================================================================================
failure                      effect
===========================  =========================================================================================
killed amid pieces           nothing names them; the next life removes them. It relies on no pieces but its own, and so
                             writes its first checkpoint whole
killed amid claim or fetch   the next start does it again
the store is gone            training goes on, with warnings, and the newest checkpoint is sent when it is back; those
                             in between are passed over. At the start and the end it is waited for a minute, and then
                             the trainer ends with an error: the next start on this machine sends what was not
the folder's is damaged      it is not sent, with a warning, and the next one is
a piece is missing or        the start is refused, with the command that fetches the checkpoint before (:func:`fetch`).
damaged                      While a trainer runs, one that lacks a piece leaves its index with a warning
the machine is lost          the steps since the newest checkpoint there are trained again, as their records say
===========================  =========================================================================================

Credentials come from the environment and the files of the store's library. Nothing that is read here can run code.
"""

import contextlib
import hashlib
import logging
import math
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import batched
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from trinity_bus import awake
from trinity_bus.errors import SupersededError
from trinity_bus.runtime.object_store import AT_ONCE, PIECE, MissingObjectError, ObjectStoreError, PatientStore
from trinity_bus.runtime.plain_files import open_plain
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import NOTES, PROGRESS, RUN, MirrorNote
from trinity_bus.training.checkpoint.listing import Listed
from trinity_bus.training.errors import CheckpointError

log = logging.getLogger(__name__)

_LIVES: Final = "lives/"
_PIECES: Final = "pieces/"
_LIFE: Final = r"\d{8,16}-[0-9a-f]{32}"
_CLAIM: Final = b"claimed"
_MOST_BYTES: Final = 256 << 20  # of an index: three checkpoints of 5 TB
_OUTAGE_S: Final = 60.0
_POLL_S: Final = 1.0

type Life = Annotated[str, Field(pattern=f"^{_LIFE}$")]
type Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
# Any but "." and ".."
type FileName = Annotated[str, Field(pattern=r"^([^./\\\pC]|\.[^./\\\pC]|\.\.[^/\\\pC])[^/\\\pC]*$", max_length=255)]
type NoteName = Annotated[str, Field(pattern=f"^({'|'.join(map(re.escape, NOTES))})$")]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StoredFile(_Stored):
    size: Annotated[int, Field(ge=0)]
    pieces: tuple[Digest, ...]

    @model_validator(mode="after")
    def _as_many_as_it_takes(self) -> Self:
        if len(self.pieces) != -(-self.size // PIECE):
            raise PydanticCustomError("pieces", "a file has other pieces than its size takes")
        return self

    def spans(self) -> Iterator[tuple[str, int]]:
        """Return each piece's digest and size."""
        for place, digest in enumerate(self.pieces):
            yield digest, min(PIECE, self.size - place * PIECE)


class StoredCheckpoint(_Stored):
    life: Life  # which wrote it
    written: float  # since the epoch
    needs: Annotated[int, Field(ge=0)]  # the offset in ``batches`` from which on it would go on
    files: dict[FileName, StoredFile]

    def names(self) -> set[str]:
        return {f"{_PIECES}{self.life}/{digest}" for file in self.files.values() for digest in file.pieces}


class StoredIndex(_Stored):
    format: Literal[1] = 1
    run: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    notes: dict[NoteName, str]
    checkpoints: dict[Annotated[int, Field(ge=0)], StoredCheckpoint]

    def to_go_on_from(self) -> list[int]:
        """Return the steps that a rollback does not discard, the oldest first; CheckpointError where it does all."""
        last = checkpoint.rolls_back_to(self.notes)
        left = sorted(step for step in self.checkpoints if last is None or step <= last)
        if self.checkpoints and not left:
            raise CheckpointError(
                f"a rollback to step {last} was begun, and there are only later checkpoints, of steps "
                f"{sorted(self.checkpoints)}: start the trainer on the machine whose trainer.checkpoint_dir has that "
                "step, or set trainer.checkpoint_url to another address to begin anew"
            )
        return left


def read_index(content: bytes, where: str) -> StoredIndex:
    try:
        return StoredIndex.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointError(
            f"{where} is no index of checkpoints ({error.errors()[0]['msg']}): it is damaged, or of a newer program; "
            "remove it to go on from the index before it, if there is one"
        ) from error


def _order(life: str) -> tuple[int, str]:
    return int(life.partition("-")[0]), life


def _lives(store: PatientStore) -> list[str]:
    """Return the lives that are there, the highest first."""
    found = (name.removeprefix(_LIVES) for name in store.tried(lambda: store.names(_LIVES)))
    return sorted((life for life in found if re.fullmatch(_LIFE, life)), key=_order, reverse=True)


class CheckpointsThere:
    """What is at a URL, for whoever writes nothing there."""

    def __init__(self, url: str, *, outage_s: float = _OUTAGE_S) -> None:
        self.url = url.rstrip("/")
        self.store = PatientStore(self.url, outage_s)

    def newest(self) -> tuple[str, StoredIndex] | None:
        """Return the life that counts, and its index; CheckpointError where it cannot be read."""
        for life in _lives(self.store):
            name = f"{_LIVES}{life}"
            content = self._read({name: _MOST_BYTES})[name]
            if content != _CLAIM:
                return life, read_index(content, f"{self.url}/{name}")
        return None

    def index(self) -> tuple[str, StoredIndex]:
        found = self.newest()
        if found is None:
            raise CheckpointError(f"there are no checkpoints at {self.url}")
        return found

    def listed(self, *, verified: bool = False) -> list[Listed]:
        """Return the checkpoints, the oldest first; ``verified`` by the digests of all their pieces."""
        _, index = self.index()
        listed = []
        for step, found in sorted(index.checkpoints.items()):
            manifest, problem = None, ""
            with tempfile.TemporaryDirectory(prefix="trinity-bus-") as folder:
                try:
                    self.write(step, found, Path(folder), only=PROGRESS)
                    manifest = checkpoint.read_manifest(Path(folder))
                    if verified:
                        for _ in self._pieces(step, found):
                            pass
                except CheckpointError as error:
                    problem = str(error)
            listed.append(Listed(f"{self.url} step {step}", found.written, step, manifest, problem))
        return listed

    def fetch(self, life: str, index: StoredIndex, step: int, directory: Path) -> Path:
        """Make a directory without checkpoints that of the run, with one of them, and return its folder.

        CheckpointError: there is no such checkpoint, it is damaged, or the directory is another run's.
        """
        if step not in index.to_go_on_from():
            raise CheckpointError(f"{self.url} has no checkpoint of step {step}, but of {index.to_go_on_from()}")
        self.fetch_notes(index, directory)
        log.info("fetching the checkpoint of step %d from %s", step, self.url)
        folder = checkpoint.begin(directory, step)
        self.write(step, index.checkpoints[step], folder)
        # Before it can be seen: a folder with checkpoints and no such note is taken for another life's.
        checkpoint.note_mirror(directory, _known((life,), index.checkpoints))
        return checkpoint.reveal(folder, checkpoint.folder_of(directory, step))

    def fetch_notes(self, index: StoredIndex, directory: Path) -> None:
        self.ensure_run(index, directory)
        for name in NOTES:
            (directory / name).unlink(missing_ok=True)
        for name, content in {**index.notes, RUN: index.run}.items():
            checkpoint.replace(directory / name, content)

    def ensure_run(self, index: StoredIndex, directory: Path) -> None:
        if (directory / RUN).exists() and checkpoint.read_run(directory) != index.run:
            raise CheckpointError(
                f"{self.url} has checkpoints of another run than {directory}: set trainer.checkpoint_dir to an empty "
                "folder to go on with that run, or trainer.checkpoint_url to an address of its own"
            )

    def write(self, step: int, found: StoredCheckpoint, folder: Path, *, only: str | None = None) -> None:
        """Write a checkpoint's files into a folder; CheckpointError where a piece is missing or damaged."""
        with contextlib.ExitStack() as stack:
            files = {
                name: stack.enter_context((folder / name).open("xb")) for name in found.files if only in (None, name)
            }
            for name, piece in self._pieces(step, found, only):
                files[name].write(piece)

    def _pieces(self, step: int, found: StoredCheckpoint, only: str | None = None) -> Iterator[tuple[str, bytes]]:
        for file, stored in found.files.items():
            for window in batched(stored.spans() if only in (None, file) else (), AT_ONCE):
                sizes = {f"{_PIECES}{found.life}/{digest}": size for digest, size in window}
                try:
                    read = self._read(sizes)
                except MissingObjectError as error:
                    raise self._damaged(step, f"a piece of {file} is missing, {error}") from error
                for name, size in sizes.items():
                    if len(read[name]) != size or not name.endswith(hashlib.sha256(read[name]).hexdigest()):
                        raise self._damaged(step, f"{name}, of {file}, is not what was written")
                for digest, _ in window:
                    yield file, read[f"{_PIECES}{found.life}/{digest}"]

    def _read(self, sizes: dict[str, int]) -> dict[str, bytes]:
        return self.store.tried(lambda: self.store.read(sizes))

    def _damaged(self, step: int, what: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint of step {step} at {self.url} is damaged: {what}; `trinity-bus checkpoints list --dir "
            f"{self.url}` shows the others, and `trinity-bus checkpoints fetch STEP` has the trainer go on from one"
        )


def _known(lives: tuple[str, ...], *indexes: Mapping[int, StoredCheckpoint]) -> MirrorNote:
    """Return what is to be noted where any of these indexes may be there."""
    needs = min(min((found.needs for found in index.values()), default=0) for index in indexes)
    return MirrorNote(lives=lives, needs=needs, newest=max(max(index, default=-1) for index in indexes))


class CheckpointMirror:
    """The copying of a directory that this process has: ``open`` before anything is read there, ``run`` in a thread."""

    def __init__(self, directory: Path, url: str, *, keep: int, outage_s: float = _OUTAGE_S) -> None:
        self._directory = directory
        self._there = CheckpointsThere(url, outage_s=outage_s)
        self._store = self._there.store
        self._keep = keep
        self._outage_s = outage_s
        self._finishing = threading.Event()
        self._life = ""
        self._kept: dict[int, StoredCheckpoint] = {}  # in the index that is there

    def open(self) -> None:
        """Claim the URL, fetch what the folder lacks, and finish a rollback.

        CheckpointError: what is there is damaged, of another run, or nothing to go on from. ObjectStoreError: it cannot
        be reached. SupersededError: another trainer claims it at the same time.
        """
        directory = self._directory
        number = 1 + next((_order(highest)[0] for highest in _lives(self._store)), 0)
        self._life = f"{number:08d}-{uuid.uuid4().hex}"
        self._store.put({self._own: _CLAIM})
        before = self._there.newest()
        self._ensure_highest()
        if before is not None:
            self._there.ensure_run(before[1], directory)
            self._kept = before[1].checkpoints
            if not self._goes_on_from(*before):
                self._adopt(*before)
                self._ensure_highest()
        if self._kept and checkpoint.latest(directory, checkpoint.rolls_back_to(self._notes())) is None:
            raise CheckpointError(
                f"{directory} has no checkpoint that the rollback which was begun leaves, and {self._there.url} "
                f"has some: move all of {directory} away to go on from those"
            )
        checkpoint.finish_rollback(directory)
        through = max(checkpoint.steps(directory), default=-1)
        kept = {step: found for step, found in self._kept.items() if step <= through}
        if dropped := sorted(self._kept.keys() - kept.keys()):
            log.warning("steps %s are not in %s, and their checkpoints leave %s", dropped, directory, self._there.url)
        self._put_index(kept, *(() if before is None else before[:1]), self._life)

    def run(self) -> None:
        """Send what is new in the directory until ``finish``, and then the last; SupersededError when it is fenced."""
        is_last, failed, again_at = False, Path(), 0.0
        while not is_last:
            is_last, folder = self._finishing.is_set(), failed
            try:
                folder = checkpoint.latest(self._directory) or Path()
                is_due = is_last or folder != failed or awake.now() >= again_at
                if folder.name and is_due and checkpoint.step_of(folder) not in self._kept:
                    self._send(folder)
            except SupersededError:
                raise
            # Training goes on, whatever it is.
            except Exception as error:
                if is_last and not self._store.is_closed:
                    raise
                # One that is damaged stays so, and it takes long to read; what the disk or the store says may pass.
                is_final = isinstance(error, CheckpointError) and error.__cause__ is None
                again_at = math.inf if is_final else awake.now() + self._outage_s
                failed = folder
                log.warning("%s is not at %s yet: %s", folder.name, self._there.url, error)
            awake.wait_in_thread(self._finishing.wait, _POLL_S)

    def finish(self, *, at_once: bool = False) -> None:
        """Have ``run`` end, when the newest checkpoint is sent, or at once."""
        if at_once:
            self._store.close()
        self._finishing.set()

    @property
    def _own(self) -> str:
        return f"{_LIVES}{self._life}"

    def _goes_on_from(self, life: str, index: StoredIndex) -> bool:
        # Not so where somebody has removed what was in the folder, nor where it is of an earlier time.
        has_any, note = (
            bool(checkpoint.steps(self._directory)) or not index.checkpoints,
            checkpoint.read_mirror(self._directory),
        )
        return has_any and life in note.lives and max(index.checkpoints, default=-1) <= note.newest

    def _adopt(self, life: str, index: StoredIndex) -> None:
        newest = max(index.to_go_on_from(), default=None)
        if aside := checkpoint.steps(self._directory):
            log.warning(
                "a trainer has gone on elsewhere with what is at %s: steps %s in %s are set aside as discarded-step-*",
                *(self._there.url, aside, self._directory),
            )
            checkpoint.discard(self._directory, after=-1)
        if newest is None:
            self._there.fetch_notes(index, self._directory)
        else:
            self._there.fetch(life, index, newest, self._directory)

    def _send(self, folder: Path) -> None:
        there = set(self._store.tried(lambda: self._store.names(_LIVES, _PIECES)))
        self._ensure_highest()
        self._store.written &= there
        files, before = dict[str, StoredFile](), len(self._store.written)
        with checkpoint.held(folder):
            checkpoint.verify(folder)
            for path in sorted(folder.iterdir()):
                digests: list[str] = []
                self._store.send(self._pieces(path, digests))
                files[path.name] = StoredFile(size=path.stat().st_size, pieces=tuple(digests))
            written, progress = (folder / PROGRESS).stat().st_mtime, checkpoint.read_manifest(folder).progress
        kept = {step: found for step, found in self._kept.items() if found.names() <= there}
        if lost := sorted(self._kept.keys() - kept.keys()):
            log.warning("the checkpoints of steps %s at %s lack pieces, and are removed", lost, self._there.url)
        needs = progress.batches_offset
        kept[checkpoint.step_of(folder)] = StoredCheckpoint(life=self._life, written=written, needs=needs, files=files)
        kept = dict(sorted(kept.items())[-self._keep :])
        self._put_index(kept, self._life)
        log.info("%s is at %s: %d pieces sent", folder.name, self._there.url, len(self._store.written) - before)
        self._store.keep_only({self._own}.union(*(found.names() for found in kept.values())), there, _LIVES)

    def _pieces(self, path: Path, digests: list[str]) -> Iterator[tuple[str, Callable[[], bytes]]]:
        with open_plain(path) as file:
            while piece := file.read(PIECE):
                digests.append(hashlib.sha256(piece).hexdigest())
                yield f"{_PIECES}{self._life}/{digests[-1]}", partial(bytes, piece)

    def _notes(self) -> dict[str, str]:
        return {name: path.read_text() for name in NOTES if (path := self._directory / name).exists()}

    def _put_index(self, kept: dict[int, StoredCheckpoint], *lives: str) -> None:
        """Write it, note in the folder what is there now, and look for a higher life before what it needs is noted."""
        found = StoredIndex(run=checkpoint.run_name(self._directory), notes=self._notes(), checkpoints=kept)
        index = found.model_dump_json().encode()
        if len(index) > _MOST_BYTES:
            raise CheckpointError(
                f"the index at {self._there.url} would be of {len(index)} bytes, and at most {_MOST_BYTES} are read: "
                "lower trainer.keep_checkpoints"
            )
        # Killed in between, the folder knows of whichever is there.
        checkpoint.note_mirror(self._directory, _known(lives, self._kept, kept))
        self._store.put({self._own: index})
        self._kept = kept
        self._ensure_highest()
        checkpoint.note_mirror(self._directory, _known(lives, kept))

    def _ensure_highest(self) -> None:
        lives = _lives(self._store)
        if lives and _order(lives[0]) > _order(self._life):
            raise SupersededError(
                f"another trainer has begun with {self._there.url}, and has this one's place: stop one of the two, or "
                "give this one its own TRINITY_BUS_TRAINER__CHECKPOINT_URL"
            )
        if self._life not in lives:
            raise ObjectStoreError(
                f"{self._there.url}/{self._own} was written, and is not listed: start the trainer again if somebody "
                "has removed it"
            )
