"""The engine that a trainer's settings ask for, as its newest checkpoint left it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trinity_bus.bus import LogIdentity
from trinity_bus.config import Settings, required
from trinity_bus.hub import source_of
from trinity_bus.training import checkpoint, layout_rules
from trinity_bus.training.checkpoint import RunIdentity, TrainingProgress, resume
from trinity_bus.training.checkpoint.folders import model_digest
from trinity_bus.training.checkpoint.manifest import read_manifest
from trinity_bus.training.checkpoint.resume import Shaping
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families import read_shape
from trinity_bus.training.objectives import Need
from trinity_bus.training.ranks.followers import Followers
from workers.trainer.published_tensors import Publisher, make_publisher

if TYPE_CHECKING:
    from trinity_bus.training.engines.megatron_engine import MegatronEngine
    from trinity_bus.training.engines.torch_engine import TorchEngine

log = logging.getLogger(__name__)


class EngineThread:
    """The one thread that touches the engine. Leaving it waits for what is running."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    run, shaping = run_identity(settings, source, identity), resume.shaping(settings.mesh, settings.trainer)
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
    for line in resume.differences(written.settings, shaping):
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
