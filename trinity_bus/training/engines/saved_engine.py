"""What is kept of a rank's engine: checkpoints, exported models, and how far training has come.

In a checkpoint all tensors are whole and have names of Hugging Face or, where adapters are trained, of PEFT, so it can
be read in any layout. Its weights have in them what adapters add. They are not read back then: the adapters are, and
are added anew to the weights of the source, which stay what they were.
"""

import shutil
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist

from trinity_bus.config import TrainerSettings, required
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.checkpoint.folders import ADAPTER
from trinity_bus.training.checkpoint.writing import write_companions
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.engines import adapters
from trinity_bus.training.engines.critic import Critic
from trinity_bus.training.engines.saving import BackgroundSaver, SavedState, Snapshot, copies, ensure_loadable
from trinity_bus.training.errors import CheckpointError
from trinity_bus.training.families import hf_folder
from trinity_bus.training.layout import Layout


class SavedEngine(TrainingEngine):
    # In ``trainer.engine`` and in checkpoints
    NAME: ClassVar[str]

    def __init__(self, settings: TrainerSettings, layout: Layout) -> None:
        self.settings, self.layout, self.dtype = settings, layout, self.dtype_of(settings)
        self.source = Path(required(settings.model_path, "mesh.model_path", "to know what to train"))
        self.device_type = str(layout.device.type)
        self.progress = TrainingProgress()
        self._critic: Critic | None = None
        self._saver = BackgroundSaver()

    # ------------------------------------------------------------------------------------------ what an engine brings

    @staticmethod
    @abstractmethod
    def dtype_of(settings: TrainerSettings) -> torch.dtype:
        """TrainingError where the engine does not train in the type asked for."""

    @abstractmethod
    def _load_weights(self, folder: Path) -> None: ...

    @abstractmethod
    def _load_adapters(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        """Take over what :meth:`adapter_tensors` gave in any layout; CheckpointError where it is of another model."""

    @abstractmethod
    def _optimizer_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the optimizer's state by name, whole, in a fixed order. All ranks must iterate to the end."""

    @abstractmethod
    def _load_optimizer_state(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        """Take over a state of any layout; CheckpointError where it is of another model."""

    # ------------------------------------------------------------------------------------------- writing and reading

    def export_hf(self, path: Path) -> None:
        tensors, adapter = self.hf_tensors(), self.adapter_tensors()
        if self.layout.rank == 0:
            partial = path.with_name(f".partial-{path.name}")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write_companions(partial, self.source, str(self.dtype))
            # Those of several ranks can be gathered only once.
            held = self.hf_tensors if self.layout.world_size == 1 else copies(tensors)
            hf_folder.write_weights(partial, held)
            if self.settings.lora_rank:
                adapters.write_peft(partial / adapters.FOLDER, self.source, adapter, self.settings)
            if path.exists():
                shutil.rmtree(path)
            partial.rename(path)
        for gathered in (tensors, adapter):
            deque(gathered, maxlen=0)  # the other ranks' part in gathering the weights
        if self.layout.world_size > 1:
            dist.barrier()

    def save_checkpoint(self, directory: Path, progress: TrainingProgress, *, as_hf: bool = True) -> "Future[Path]":
        # All ranks give what they have, and rank 0 alone writes.
        if progress.step != self.progress.step:
            raise CheckpointError(f"progress says step {progress.step}, the engine is at step {self.progress.step}")
        self.progress = progress
        self._saver.wait()
        if self.layout.rank > 0:
            # This rank's part in gathering, in the order in which rank 0 asks.
            for gathered in (self._optimizer_state(), self.adapter_tensors(), self.hf_tensors()):
                deque(gathered, maxlen=0)
            written: Future[Path] = Future()
            written.set_result(checkpoint.folder_of(directory, progress.step))
            return written
        rng = {"torch": torch.get_rng_state()}
        if self.device_type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state()

        def state() -> Iterator[tuple[str, torch.Tensor]]:
            critic = {} if self._critic is None else self._critic.state()
            parts: dict[str, Iterable[tuple[str, torch.Tensor]]] = {
                "optimizer.": self._optimizer_state(),
                ADAPTER: self.adapter_tensors(),
                "critic.": critic.items(),
                "rng.": rng.items(),
            }
            return ((prefix + name, tensor) for prefix, part in parts.items() for name, tensor in part)

        # What several ranks hold is gathered by all of them, here; what this one has stays as it is until it is taken.
        is_alone = self.layout.world_size == 1
        snapshot = Snapshot(
            progress=progress,
            written_by=self.written_by(self.settings),
            state=state if is_alone else copies(state()),
            weights=self.hf_tensors if is_alone else copies(self.hf_tensors()),
            source=self.source,
            dtype=self.dtype,
            as_hf=as_hf,
            keep=self.settings.keep_checkpoints,
        )
        return self._saver.save(snapshot, directory)

    def load_latest(self, directory: Path, *, through: int | None = None) -> TrainingProgress | None:
        self._saver.wait()
        folder = checkpoint.latest(directory, through)
        if folder is None:
            return None
        with checkpoint.held(folder):
            return self._load(folder)

    def _load(self, folder: Path) -> TrainingProgress:
        progress = checkpoint.read_progress(folder, self.written_by(self.settings))
        if self.layout.rank == 0:
            checkpoint.verify(folder)
        ensure_loadable(folder, self.settings, critic=self._critic is not None)
        optimizer, adapter, rng = (SavedState(folder, f"{part}.") for part in ("optimizer", "adapter", "rng"))
        if adapter:
            self._load_adapters(adapter, folder)
        else:
            self._load_weights(folder)
        self._load_optimizer_state(optimizer, folder)
        torch.set_rng_state(rng["torch"])
        if self.device_type == "cuda" and "cuda" in rng:  # It is not where a CPU has trained before.
            torch.cuda.set_rng_state(rng["cuda"])
        if self._critic is not None:
            self._critic.load_state(SavedState(folder, "critic."))
        self.progress = progress
        return progress

    def leave(self) -> None:
        # A checkpoint that is being written is finished.
        self._saver.close()

    @classmethod
    def written_by(cls, settings: TrainerSettings) -> WrittenBy:
        return WrittenBy(engine=cls.NAME, dtype=str(cls.dtype_of(settings)))
