"""What is published of a model: the merged weights, or the adapter alone that is trained beside them.

Either can be given as the engine has it now, and as a checkpoint has it, in the same order and bit for bit the same, so
that a version which is brought back has the checksum that it had. An adapter comes as PEFT names it, each ``B`` times
alpha over rank, so that nothing else need be known of it; the last tensor is the identity of the weights that it is
trained beside (``weights.base``).
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.training.checkpoint.folders import ADAPTER, STATE, folder_of
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.base import BASE, identity
from trinity_bus.weights.checkpoint.published import WEIGHTS
from trinity_bus.weights.errors import TensorFileError
from trinity_bus.weights.tensor_file import TensorFile

if TYPE_CHECKING:
    import torch


class PublishedTensors(Protocol):
    @property
    def file(self) -> str: ...

    def now(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """To be iterated to the end, in the engine's thread."""
        ...

    def of_checkpoint(self, folder: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return it as a checkpoint has it, after :meth:`now` was called once; CheckpointError where it cannot."""
        ...

    def folder_of(self, directory: Path, version: int) -> Path | None:
        """Return the folder whose files have the very tensors of a version by the time that it is announced, if any."""
        ...


def published_of(engine: TrainingEngine, settings: Settings) -> PublishedTensors:
    trainer = settings.trainer
    if trainer.adapter_rank:
        return AdapterAlone(engine, trainer)
    # What was not trained yet is the model's own files, unless it has been rounded on the way through the engine.
    is_as_read = settings.synchronizer.sync_dtype == "same" and not trainer.lora_rank
    return MergedWeights(engine, durable=trainer.publish == "durable", is_as_read=is_as_read)


class MergedWeights:
    """All weights, under their Hugging Face names.

    Args:
        engine: Has them.
        durable: Whether what is announced has a checkpoint.
        is_as_read: Whether version 0 has the very tensors of the model that was begun with.
    """

    file = WEIGHTS

    def __init__(self, engine: TrainingEngine, *, durable: bool = False, is_as_read: bool = False) -> None:
        self._engine = engine
        self._durable = durable
        self._is_as_read = is_as_read
        # In the engine's order
        self._names: list[str] = []

    def now(self) -> "Iterator[tuple[str, torch.Tensor]]":
        self._names.clear()
        for name, tensor in self._engine.hf_tensors():
            self._names.append(name)
            yield name, tensor

    def of_checkpoint(self, folder: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        return read_tensors(folder / WEIGHTS, tuple(self._names))

    def folder_of(self, directory: Path, version: int) -> Path | None:
        if version == 0:
            return self._engine.source if self._is_as_read else None
        return folder_of(directory, version) if self._durable else None


class AdapterAlone:
    file = STATE

    def __init__(self, engine: TrainingEngine, settings: TrainerSettings) -> None:
        self._engine = engine
        self._scale = settings.lora_alpha / settings.lora_rank
        self._names: list[str] = []

    def now(self) -> "Iterator[tuple[str, torch.Tensor]]":
        self._names.clear()
        for name, tensor in self._engine.adapter_tensors():
            self._names.append(name)
            yield name, self._scaled(name, tensor)
        yield self._base

    def of_checkpoint(self, folder: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        for name, tensor in read_tensors(folder / STATE, [ADAPTER + name for name in self._names]):
            yield name.removeprefix(ADAPTER), self._scaled(name, tensor)
        yield self._base

    def folder_of(self, directory: Path, version: int) -> None:
        """In files it is not scaled."""

    def _scaled(self, name: str, tensor: "torch.Tensor") -> "torch.Tensor":
        return tensor * self._scale if name.endswith(".lora_B.weight") else tensor

    @cached_property
    def _base(self) -> "tuple[str, torch.Tensor]":
        import torch

        return BASE, torch.frombuffer(bytearray(identity(self._engine.source)), dtype=torch.uint8)


def read_tensors(path: Path, names: Sequence[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    """Return the named tensors of a checkpoint's file, in order."""
    try:
        with TensorFile(path) as file:
            for name in names:
                yield name, file.tensor(name)
    except (OSError, TensorFileError) as error:
        raise CheckpointError(f"{path.parent} cannot be read: {error}") from error
