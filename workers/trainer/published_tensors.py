"""What is published of a model: the merged weights, or the adapter alone that is trained beside them; and on which way.

Either can be given as the engine has it now, and as a checkpoint has it, in the same order and bit for bit the same, so
that a version which is brought back has the checksum that it had. An adapter comes as PEFT names it, each ``B`` times
alpha over rank, so that nothing else need be known of it; the last tensor is the identity of the weights beside it.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

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

    from trinity_bus.weights.checkpoint import CheckpointPublisher
    from trinity_bus.weights.pull.server import WeightServer

type Publisher = CheckpointPublisher | WeightServer


class PublishedTensors:
    """All weights under their Hugging Face names; with ``mesh.adapter_rank`` what is trained beside them alone."""

    def __init__(self, engine: TrainingEngine, settings: Settings) -> None:
        trainer = settings.trainer
        self._engine = engine
        self._is_adapter = trainer.adapter_rank > 0
        # Of a checkpoint, and before the names in it
        self.file, self._prefix = (STATE, ADAPTER) if self._is_adapter else (WEIGHTS, "")
        self._scale = trainer.lora_alpha / trainer.lora_rank if self._is_adapter else 1.0
        self._is_durable = trainer.publish == "durable"
        # What was not trained yet is the model's own files, unless it has been rounded on the way through the engine.
        self._is_as_read = settings.synchronizer.sync_dtype == "same" and not trainer.lora_rank
        # In the engine's order
        self._names: list[str] = []

    def now(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """To be iterated to the end, in the engine's thread."""
        self._names.clear()
        for name, tensor in self._engine.adapter_tensors() if self._is_adapter else self._engine.hf_tensors():
            self._names.append(name)
            yield self._published(name, tensor)
        if self._is_adapter:
            yield self._base

    def of_checkpoint(self, folder: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return it as a checkpoint has it, after :meth:`now` was called once; CheckpointError where it cannot."""
        for name, tensor in read_tensors(folder / self.file, [self._prefix + name for name in self._names]):
            yield self._published(name.removeprefix(self._prefix), tensor)
        if self._is_adapter:
            yield self._base

    def folder_of(self, directory: Path, version: int) -> Path | None:
        """Return the folder whose files have the very tensors of a version by the time that it is announced, if any."""
        if self._is_adapter:
            return None  # in files it is not scaled
        if version == 0:
            return self._engine.source if self._is_as_read else None
        return folder_of(directory, version) if self._is_durable else None

    def _published(self, name: str, tensor: "torch.Tensor") -> "tuple[str, torch.Tensor]":
        return name, tensor * self._scale if name.endswith(".lora_B.weight") else tensor

    @cached_property
    def _base(self) -> "tuple[str, torch.Tensor]":
        import torch

        return BASE, torch.frombuffer(bytearray(identity(self._engine.source)), dtype=torch.uint8)


def read_tensors(path: Path, names: Sequence[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    try:
        with TensorFile(path) as file:
            for name in names:
                yield name, file.tensor(name)
    except (OSError, TensorFileError) as error:
        raise CheckpointError(f"{path.parent} cannot be read: {error}") from error


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
