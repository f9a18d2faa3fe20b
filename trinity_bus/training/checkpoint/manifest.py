"""``progress.json``: how far training has come, what is in a checkpoint, by whom, and whether it is still so.

The manifest keeps the settings that shape training, and says which have changed since.

::

    settings --shaping--> names and plain values, in every checkpoint of the run (``TrainingProgress.settings``)
    a checkpoint's, and ours --differences--> a line for each, said before anything is loaded; or a refusal

Every setting of ``trainer`` counts but those that are listed here with a reason, so a new one counts until somebody
says that it does not. What optimizer, layout and run depend on is compared beside this and refused
(``checkpoint.WrittenBy``, ``checkpoint.RunIdentity``). docs/operations.md lists what each change comes to.

No secret is kept: the one of ``trainer`` is left out, and of the texts in ``trainer.objective_options`` and
``trainer.optimizer_options``, which are for programs that are not known here, a checkpoint holds digests.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas import StepBegun
from schemas.record import MAX_SKIPPED, SkippedBatch
from trinity_bus.config import MeshSettings, TrainerSettings
from trinity_bus.runtime.plain_files import read_plain
from trinity_bus.training.checkpoint.folders import PROGRESS, digests, newest_first, text_digest
from trinity_bus.training.errors import CheckpointError

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
