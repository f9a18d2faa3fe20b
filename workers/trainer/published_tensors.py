"""What is published of a model: the merged weights, or the adapter alone that is trained beside them; and on which way.

Either can be given as the engine has it now, and as a checkpoint has it, in the same order and bit for bit the same, so
that a version which is brought back has the checksum that it had. An adapter comes as PEFT names it, each ``B`` times
alpha over rank, so that nothing else need be known of it; the last tensor is the identity of the weights that it is
trained beside (``weights.base``).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from schemas import ModelVersion
from trinity_bus.config import Settings, SynchronizerSettings, TrainerSettings
from trinity_bus.training.checkpoint.folders import ADAPTER, STATE, folder_of
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.checkpoint import WEIGHTS
from trinity_bus.weights.errors import TensorFileError
from trinity_bus.weights.tensor_file import BASE, TensorFile, identity
from workers.preconditions import pull_certificate

if TYPE_CHECKING:
    import torch

    from trinity_bus.weights.transport import Method


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
        """To be iterated to the end, in the engine's thread."""
        self._names.clear()
        for name, tensor in self._engine.hf_tensors():
            self._names.append(name)
            yield name, tensor

    def of_checkpoint(self, folder: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return it as a checkpoint has it, after :meth:`now` was called once; CheckpointError where it cannot."""
        return read_tensors(folder / WEIGHTS, tuple(self._names))

    def folder_of(self, directory: Path, version: int) -> Path | None:
        """Return the folder whose files have the very tensors of a version by the time that it is announced, if any."""
        if version == 0:
            return self._engine.source if self._is_as_read else None
        return folder_of(directory, version) if self._durable else None


class AdapterAlone:
    """The adapter, with the methods of :class:`MergedWeights`."""

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


type PublishedTensors = MergedWeights | AdapterAlone


def published_of(engine: TrainingEngine, settings: Settings) -> PublishedTensors:
    trainer = settings.trainer
    if trainer.adapter_rank:
        return AdapterAlone(engine, trainer)
    # What was not trained yet is the model's own files, unless it has been rounded on the way through the engine.
    is_as_read = settings.synchronizer.sync_dtype == "same" and not trainer.lora_rank
    return MergedWeights(engine, durable=trainer.publish == "durable", is_as_read=is_as_read)


def read_tensors(path: Path, names: Sequence[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    try:
        with TensorFile(path) as file:
            for name in names:
                yield name, file.tensor(name)
    except (OSError, TensorFileError) as error:
        raise CheckpointError(f"{path.parent} cannot be read: {error}") from error


class Server(Protocol):
    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        """Members of an announcement may take what it announces, if they prove that they have read it."""
        ...

    def keep(self, version: int) -> None:
        """Explorers are told to serve this version: it can be had until another is named, whatever is newer."""
        ...


class Publisher(Server, Protocol):
    @property
    def method(self) -> "Method": ...

    @property
    def address(self) -> tuple[str, int]: ...

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> str:
        """Make a version one that can be had from now on; return its checksum.

        ``folder`` has the same tensors in its files once it is announced, so that no copy need be kept.
        """
        ...

    def durable(self, version: int) -> None:
        """Note that a staged version's files are there, before it is announced; WeightTransferError, OSError if not."""
        ...

    def close(self) -> None: ...


def make_publisher(settings: TrainerSettings, sync: SynchronizerSettings, directory: Path, device: str) -> Publisher:
    """ConfigError where the certificate or key of pulls cannot be used, LinkError where nothing can listen there."""
    from trinity_bus.weights.checkpoint import CheckpointPublisher
    from trinity_bus.weights.pull.server import WeightServer

    bucket_bytes, timeout_s = settings.bucket_mib << 20, sync.sync_timeout_s
    dtype = None if sync.sync_dtype == "same" else sync.sync_dtype
    if sync.sync_method == "checkpoint":
        return CheckpointPublisher(
            directory,
            host=settings.host,
            bucket_bytes=bucket_bytes,
            keep=settings.keep_checkpoints,
            dtype=dtype,
        )
    is_memory = sync.sync_method == "memory"
    return WeightServer(
        settings.host,
        ports=settings.weights_ports,
        tls=pull_certificate(sync) if is_memory else None,
        bucket_bytes=bucket_bytes,
        timeout_s=timeout_s,
        dtype=dtype,
        fan_out=sync.sync_fan_out,
        method="memory" if is_memory else "gloo" if device == "cpu" else "nccl",
    )
