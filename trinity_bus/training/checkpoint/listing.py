"""What a directory of checkpoints holds, and still needs of the log; and checkpoints in other forms.

They are converted to Hugging Face model folders and to the reference's layout, and the reference's to model folders.

::

    step-00000012/                                   hf            config.json, tokenizer, model.safetensors
    global_step_12/actor/huggingface/  --convert-->
    global_step_12/actor/                            reference     global_step_12/actor/huggingface/ and beside it
                                                                   latest_checkpointed_iteration.txt

Weights and what describes them are copied, byte for byte; the optimizer's state is not: the reference pickles its own,
which is neither written nor read here. So what was converted is a model to begin with, not a run to go on with.

Failures: ``CheckpointError`` where the source is damaged or none, holds links that lead out of it, has no configuration
and no model to take it from, or the target exists. The target appears by one rename; killed before, a folder
``.partial-...`` is left beside it.
"""

import json
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trinity_bus.runtime.plain_files import within, write_plain
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import Manifest
from trinity_bus.training.errors import CheckpointError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listed:
    where: str
    written: float
    step: int
    # None where it cannot be read
    manifest: Manifest | None
    # What is wrong with it; empty for nothing that was looked for
    problem: str = ""

    @property
    def nbytes(self) -> int:
        return 0 if self.manifest is None else sum(self.manifest.files.values())

    @property
    def is_hf(self) -> bool:
        return self.manifest is not None and "config.json" in self.manifest.files


def listed(directory: Path, *, verified: bool = False) -> list[Listed]:
    """Return the checkpoints, the oldest first; ``verified`` by the digests of all their files."""
    found = []
    for folder in reversed(checkpoint.newest_first(directory)):
        step, manifest, problem = checkpoint.step_of(folder), None, ""
        try:
            manifest = checkpoint.read_manifest(folder)
            if verified:
                checkpoint.verify(folder)
        except CheckpointError as error:
            problem = str(error)
        found.append(Listed(str(folder), folder.stat().st_mtime, step, manifest, problem))
    return found


def oldest_need(directory: Path, *, mirrored: bool = False) -> int:
    """Offset in ``batches`` from which on the oldest checkpoint would go on; 0, all of it, where that is not known.

    ``mirrored``: those at ``trainer.checkpoint_url`` count as well.
    """
    needs = [checkpoint.read_mirror(directory).needs] if mirrored else []
    for folder in checkpoint.newest_first(directory):
        try:
            match json.loads((folder / checkpoint.PROGRESS).read_bytes()):
                case {"progress": {"batches_offset": int(offset)}}:
                    needs.append(offset)
                case _:
                    needs.append(0)
        except FileNotFoundError:
            # It was too old, and has gone meanwhile.
            continue
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s): nothing is deleted from the log that it may need", folder, error)
            needs.append(0)
    return min(needs, default=0)


type Form = Literal["hf", "reference"]

_REFERENCES: Final = re.compile(r"global_step_(\d+)")
_POINTER: Final = "latest_checkpointed_iteration.txt"


def convert(source: Path, target: Path, form: Form, model: Path | None) -> Path:
    """Write a checkpoint in another form; return the model folder that was written.

    Args:
        target: For ``hf`` the model folder, which must not exist; for ``reference`` the folder of its job.
        model: Where configuration and tokenizer are, if not in the source.
    """
    step, weights, dtype = _read(source)
    written = target if form == "hf" else target / f"global_step_{step}" / "actor" / "huggingface"
    top = target if form == "hf" else target / f"global_step_{step}"
    if top.exists():
        raise CheckpointError(f"{top} exists: nothing is overwritten")
    described = weights if (weights / checkpoint.CONFIG).exists() else model
    if described is None:
        raise CheckpointError(f"{source} holds weights alone: say with --model where configuration and tokenizer are")
    partial = top.with_name(f"{checkpoint.PARTIAL}{top.name}")
    shutil.rmtree(partial, ignore_errors=True)
    folder = partial / written.relative_to(top)
    try:
        folder.mkdir(parents=True)
        for path in sorted(weights.glob("*.safetensors")):
            if path.name != checkpoint.STATE:
                shutil.copyfile(within(path, weights), folder / path.name)
        if (weights / checkpoint.INDEX).exists():
            shutil.copyfile(within(weights / checkpoint.INDEX, weights), folder / checkpoint.INDEX)
        checkpoint.write_companions(folder, described, dtype)
        partial.rename(top)
        if form == "reference":
            write_plain(target / _POINTER, str(step))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source} cannot be converted: {error}") from error
    return written


def _read(source: Path) -> tuple[int, Path, str | None]:
    if (source / checkpoint.PROGRESS).exists():
        checkpoint.verify(source, lambda name: name != checkpoint.STATE)
        manifest = checkpoint.read_manifest(source)
        return manifest.progress.step, source, manifest.dtype
    match = _REFERENCES.fullmatch(source.resolve().name)
    if match is None:
        raise CheckpointError(
            f"{source} is neither a checkpoint (there is no {checkpoint.PROGRESS}) nor a global_step_N"
        )
    for weights in (source / "actor" / "huggingface", source / "actor"):
        if any(weights.glob("*.safetensors")):
            return int(match[1]), weights, None
    raise CheckpointError(
        f"{source} has no safetensors in actor/huggingface or actor: what else it may have is pickled, and not read; "
        "have the reference export it first (trinity convert)"
    )
