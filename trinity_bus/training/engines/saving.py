"""Checkpoints beside training: a thread makes files of the engine's own tensors, until these are about to change.

::

    IDLE --save--> READING --all is in files--> WRITING --rename--> IDLE
                      |            '--taken: the engine may update its weights
                      '--an error--> its future has it; whoever saves again, or waits, gets it too

No step changes weights or the optimizer's state before its update, and forward and backward passes come before that: so
nothing is copied. Who is about to change any calls ``taken`` first, which waits where the disk is slower than the
passes. Where tensors are gathered from several ranks they are copies anyway. One is written at a time. Killed while it
writes, the newest checkpoint is the one before (``checkpoint``).
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from trinity_bus.config import TrainerSettings
from trinity_bus.training import checkpoint
from trinity_bus.training import tensors as hf_folder
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.checkpoint.folders import ADAPTER, PARTIAL, STATE
from trinity_bus.training.checkpoint.listing import convert
from trinity_bus.training.checkpoint.writing import write_companions
from trinity_bus.training.engines.adapters import FOLDER, write_peft
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.tensor_file import write_tensors

# Gives the same names, in the same order, each time
type NamedTensors = Callable[[], Iterable[tuple[str, torch.Tensor]]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    progress: TrainingProgress
    written_by: WrittenBy
    weights: NamedTensors
    state: NamedTensors
    # Folder that the model came from
    source: Path
    # Of the weights
    dtype: torch.dtype
    # Whether it is to be a model folder, with configuration and tokenizer
    as_hf: bool
    # Checkpoints, this one included
    keep: int

    def write(self, directory: Path, taken: Callable[[], None]) -> Path:
        """Make it a checkpoint. ``taken`` is called once no tensor is read any more, whatever comes."""
        try:
            try:
                folder = checkpoint.begin(directory, self.progress.step)
                with torch.no_grad():
                    write_tensors(folder / STATE, self.state)
                    hf_folder.write_weights(folder, self.weights)
            finally:
                taken()
            if self.as_hf:
                write_companions(folder, self.source, str(self.dtype))
            return checkpoint.commit(directory, self.progress, self.written_by, keep=self.keep)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint of step {self.progress.step} cannot be written to {directory}: {error}"
            ) from error


def export(folder: Path, target: Path, source: Path, settings: TrainerSettings) -> None:
    """Write a checkpoint's model as a Hugging Face folder, replacing what is there only when the new one is whole.

    ``source`` is the folder that the model came from. Where adapters are trained theirs is in it, too.
    """
    partial = target.with_name(f"{PARTIAL}{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    convert(folder, partial, "hf", source)
    if settings.lora_rank:
        write_peft(partial / FOLDER, source, SavedState(folder, ADAPTER).items(), settings)
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)


def copies(tensors: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    copied = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors}
    return copied.items


class BackgroundSaver:
    # Its methods are called by one thread.

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last: Future[Path] | None = None
        self._taken = threading.Event()
        self._taken.set()

    def save(self, snapshot: Snapshot, directory: Path) -> Future[Path]:
        """``wait`` first, so that there are never two."""
        self._taken.clear()
        self._last = self._thread.submit(snapshot.write, directory, self._taken.set)
        return self._last

    def taken(self) -> None:
        """Return when no tensor of the snapshot is read any more."""
        self._taken.wait()

    def wait(self) -> None:
        """Return when nothing is being written; raises what the last one failed with."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        self._thread.shutdown()


class SavedState(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint's ``STATE``, read as they are asked for; names are given without ``prefix``."""

    def __init__(self, folder: Path, prefix: str) -> None:
        path = folder / STATE
        self._prefix = prefix
        try:
            self._file = safe_open(path, "pt")
            names: list[str] = self._file.keys()  # type: ignore[no-untyped-call]  # not typed there
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        ours = sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))
        self._names = dict.fromkeys(ours)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: torch.Tensor = self._file.get_tensor(self._prefix + name)  # type: ignore[no-untyped-call]  # likewise
        return tensor

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(self._prefix + name).get_shape())  # type: ignore[no-untyped-call]  # likewise

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def ensure_loadable(folder: Path, settings: TrainerSettings, *, critic: bool) -> None:
    """Refuse a checkpoint that cannot be gone on from with these adapters, or this critic. Reads names and shapes."""
    adapter, asked = SavedState(folder, ADAPTER), settings.lora_rank
    # What PEFT calls A is [rank, features].
    written = next((adapter.shape_of(name)[0] for name in adapter if name.endswith("lora_A.weight")), 0)
    if written != asked:
        raise CheckpointError(
            f"{folder} was written with trainer.lora_rank={written}, here {asked}: set TRINITY_BUS_TRAINER__LORA_RANK "
            "as it was, or start with this folder as model_path and an empty checkpoint_dir"
        )
    if critic and not SavedState(folder, "critic."):
        raise CheckpointError(
            f"{folder} has no critic: trainer.advantage={settings.advantage!r} can be begun with, from this folder as "
            "model_path and an empty checkpoint_dir"
        )
