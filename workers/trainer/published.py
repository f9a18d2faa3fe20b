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
from trinity_bus.weights.checkpoint import WEIGHTS
from trinity_bus.weights.errors import TensorFileError
from trinity_bus.weights.tensor_file import BASE, TensorFile, identity

if TYPE_CHECKING:
    import torch


class PublishedTensors(Protocol):
    """What versions are made of."""

    @property
    def file(self) -> str:
        """The file of a checkpoint that :meth:`of_checkpoint` reads."""
        ...

    def now(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return it as the engine has it; to be iterated to the end, in the engine's thread."""
        ...

    def of_checkpoint(self, folder: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return it as a checkpoint has it, after :meth:`now` was called once.

        Raises:
            CheckpointError: It cannot be read.
        """
        ...

    def folder_of(self, directory: Path, version: int) -> Path | None:
        """Return the folder whose files have the very tensors of a version by the time that it is announced.

        Args:
            directory: Of checkpoints.
            version: Its number.

        Returns:
            It; None where there is none, or they are other ones.
        """
        ...


def published_of(engine: TrainingEngine, settings: Settings) -> PublishedTensors:
    """Return what the settings want to be published."""
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
        self._names: list[str] = []
        """In the engine's order."""

    def now(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """See :class:`PublishedTensors`."""
        self._names.clear()
        for name, tensor in self._engine.hf_tensors():
            self._names.append(name)
            yield name, tensor

    def of_checkpoint(self, folder: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        """See :class:`PublishedTensors`."""
        return read_tensors(folder / WEIGHTS, tuple(self._names))

    def folder_of(self, directory: Path, version: int) -> Path | None:
        """See :class:`PublishedTensors`."""
        if version == 0:
            return self._engine.source if self._is_as_read else None
        return folder_of(directory, version) if self._durable else None


class AdapterAlone:
    """What is trained beside frozen weights.

    Args:
        engine: Has it.
        settings: Rank and alpha.
    """

    file = STATE

    def __init__(self, engine: TrainingEngine, settings: TrainerSettings) -> None:
        self._engine = engine
        self._scale = settings.lora_alpha / settings.lora_rank
        self._names: list[str] = []

    def now(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """See :class:`PublishedTensors`."""
        self._names.clear()
        for name, tensor in self._engine.adapter_tensors():
            self._names.append(name)
            yield name, self._scaled(name, tensor)
        yield self._base

    def of_checkpoint(self, folder: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        """See :class:`PublishedTensors`."""
        for name, tensor in read_tensors(folder / STATE, [ADAPTER + name for name in self._names]):
            yield name.removeprefix(ADAPTER), self._scaled(name, tensor)
        yield self._base

    def folder_of(self, directory: Path, version: int) -> None:
        """See :class:`PublishedTensors`: in files it is not scaled."""

    def _scaled(self, name: str, tensor: "torch.Tensor") -> "torch.Tensor":
        return tensor * self._scale if name.endswith(".lora_B.weight") else tensor

    @cached_property
    def _base(self) -> "tuple[str, torch.Tensor]":
        import torch

        return BASE, torch.frombuffer(bytearray(identity(self._engine.source)), dtype=torch.uint8)


def read_tensors(path: Path, names: Sequence[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    """Return tensors in a file of a checkpoint.

    Args:
        path: Of the file.
        names: The tensors to read, in order.

    Raises:
        CheckpointError: They cannot be read.
    """
    try:
        with TensorFile(path) as file:
            for name in names:
                yield name, file.tensor(name)
    except (OSError, TensorFileError) as error:
        raise CheckpointError(f"{path.parent} cannot be read: {error}") from error
