"""The engine that a trainer's settings ask for, as its newest checkpoint left it, and what is published of its model.

That is the merged weights, or the adapter alone that is trained beside them. Either can be given as the engine has it
now, and as a checkpoint has it, in the same order and bit for bit the same, so that a version which is brought back has
the checksum that it had. An adapter comes as PEFT names it, each ``B`` times alpha over rank, so that nothing else need
be known of it; the last tensor is the identity of the weights beside it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trinity_bus.bus import LogIdentity
from trinity_bus.config import Settings, SynchronizerSettings, TrainerSettings, required
from trinity_bus.hub import source_of
from trinity_bus.training import checkpoint, layout_rules
from trinity_bus.training.checkpoint import RunIdentity, TrainingProgress, manifest
from trinity_bus.training.checkpoint.folders import ADAPTER, STATE, folder_of, model_digest
from trinity_bus.training.checkpoint.manifest import Shaping, read_manifest
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import CheckpointError, ConversionError
from trinity_bus.training.families import read_shape
from trinity_bus.training.objectives import Need
from trinity_bus.training.ranks.followers import Followers
from trinity_bus.weights.checkpoint import WEIGHTS
from trinity_bus.weights.errors import TensorFileError
from trinity_bus.weights.tensor_file import BASE, TensorFile, identity
from workers.preconditions import object_url, pull_certificate

if TYPE_CHECKING:
    import torch

    from trinity_bus.training.engines.megatron_engine import MegatronEngine
    from trinity_bus.training.engines.torch_engine import TorchEngine
    from trinity_bus.weights.checkpoint import CheckpointPublisher
    from trinity_bus.weights.objects import ObjectPublisher
    from trinity_bus.weights.pull.server import WeightServer

type Publisher = CheckpointPublisher | ObjectPublisher | WeightServer


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
    from trinity_bus.weights.objects import ObjectPublisher
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
    if sync.sync_method == "object":
        return ObjectPublisher(
            f"{object_url(sync)}/{checkpoint.run_name(directory)}",
            bucket_bytes=bucket_bytes,
            keep=settings.keep_checkpoints,
            timeout_s=timeout_s,
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


log = logging.getLogger(__name__)


class EngineThread:
    """The one thread that touches the engine. Leaving it waits for what is running."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)

    async def call[R](self, function: Callable[[], R]) -> R:
        # Cancelling the wait does not stop a function that has begun.
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)


@dataclass(frozen=True, slots=True)
class StartingPoint:
    # Of another trainer, where one begins that has no checkpoint yet
    directory: Path
    # The last step whose checkpoint may be taken
    through: int

    def latest(self) -> Path | None:
        return checkpoint.latest(self.directory, self.through)

    @property
    def step(self) -> int:
        """0 where there is no checkpoint."""
        folder = self.latest()
        return 0 if folder is None else checkpoint.step_of(folder)


def open_publisher(settings: Settings, directory: Path, engine: TrainingEngine) -> Publisher:
    is_new = engine.progress.step == 0 and not checkpoint.latest(directory)
    if is_new and settings.synchronizer.sync_method == "checkpoint":
        # Version 0 must be somewhere to be taken from.
        engine.save_checkpoint(directory, engine.progress).result()
    return make_publisher(settings.trainer, settings.synchronizer, directory, engine.device_type)


def load_engine(
    settings: Settings,
    directory: Path,
    followers: Followers | None,
    identity: LogIdentity,
    origin: StartingPoint | None = None,
) -> TrainingEngine:
    """Refuse what cannot be gone on from, say what has changed, and load the engine, which takes seconds."""
    run, shaping = check(settings, directory, identity, origin)
    engine = _make(settings, followers)
    progress = engine.load_latest(directory)
    if progress is None and origin is not None:
        progress = engine.load_latest(origin.directory, through=origin.through)
    engine.progress = engine.progress.model_copy(
        update={"run": run, "settings": shaping, "source": _named(engine.source)}
    )
    if progress is None:
        log.info("no checkpoint in %s: starting from %s", directory, settings.trainer.model_path)
    else:
        log.info("going on after step %d", progress.step)
    return engine


def _named(source: Path) -> str | None:
    if (source / checkpoint.PROGRESS).exists():
        return read_manifest(source).progress.source
    return source_of(source)


def check(
    settings: Settings, directory: Path, identity: LogIdentity, origin: StartingPoint | None = None
) -> tuple[RunIdentity, Shaping]:
    """Say what has changed since the newest checkpoint; CheckpointError where it cannot be gone on from."""
    source = Path(required(settings.trainer.model_path, "mesh.model_path", "to know what to train"))
    layout_rules.check(settings.trainer, read_shape(source), settings.trainer.engine)
    run, shaping = run_identity(settings, source, identity), manifest.shaping(settings.mesh, settings.trainer)
    folder = checkpoint.latest(directory) or (None if origin is None else origin.latest())
    if folder is not None:
        # Here, since it imports torch: this module is imported by who trains nothing.
        from trinity_bus.training.engines.saving import ensure_loadable
        from trinity_bus.training.objectives.objective import Objective

        written = checkpoint.read_progress(folder, _engine_type(settings).written_by(settings.trainer))
        _compare(folder, written, run, shaping)
        ensure_loadable(folder, settings.trainer, critic=Need.VALUES in Objective(settings.trainer).needs)
    return run, shaping


def run_identity(settings: Settings, source: Path, batches: LogIdentity) -> RunIdentity:
    try:
        model = model_digest(source)
    except OSError as error:
        raise ConversionError(f"{source} cannot be read: {error}") from error
    return RunIdentity(cluster=batches.cluster, batches=batches.topic, namespace=settings.kafka.namespace, model=model)


def _compare(folder: Path, written: TrainingProgress, run: RunIdentity, shaping: Shaping) -> None:
    checkpoint.check_run(folder, written.run, run)
    if written.run is None:
        log.warning("%s does not say of which run it is; it is taken as one of this run", folder)
    if written.settings is None:
        log.warning("%s does not say with which settings it was trained; nothing is compared", folder)
        return
    for line in manifest.differences(written.settings, shaping):
        log.warning("settings changed after step %d: %s", written.step, line)


def _engine_type(settings: Settings) -> "type[MegatronEngine | TorchEngine]":
    if settings.trainer.engine == "torch":
        from trinity_bus.training.engines.torch_engine import TorchEngine

        return TorchEngine
    from trinity_bus.training.engines.megatron_engine import MegatronEngine

    return MegatronEngine


def _make(settings: Settings, followers: Followers | None) -> TrainingEngine:
    from trinity_bus.training.engines.micro_batch import fitted

    source = Path(required(settings.trainer.model_path, "mesh.model_path", "to know what to train"))
    trainer = fitted(settings.trainer, read_shape(source), settings.mesh.max_model_len)
    if followers is None or trainer.engine == "torch":
        return _engine_type(settings)(trainer)
    from trinity_bus.training.ranks.multi_rank_engine import MultiRankEngine

    return MultiRankEngine(trainer, followers)
