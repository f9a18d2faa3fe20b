"""The engine that a trainer's settings ask for, as its newest checkpoint left it."""

import logging
from pathlib import Path

from trinity_bus.bus import LogIdentity
from trinity_bus.config import Settings
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import RunIdentity
from trinity_bus.training.digests import model_digest
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import ConversionError
from trinity_bus.training.ranks import Followers
from workers.trainer.publication import Publisher, make_publisher

log = logging.getLogger(__name__)


def load(
    settings: Settings, directory: Path, followers: Followers | None, batches: LogIdentity
) -> tuple[TrainingEngine, Publisher]:
    """Return the engine and the publisher. Takes seconds: imports torch, and Megatron or transformers.

    Args:
        settings: Of the service.
        directory: Where its checkpoints are.
        followers: The other ranks; None where there are none.
        batches: The log that is trained on.

    Raises:
        TrinityError: Training cannot begin.
    """
    engine = _make(settings, followers)
    run = run_identity(settings, engine.source, batches)
    folder = checkpoint.latest(directory)
    progress = engine.load_latest(directory)
    if progress is not None and folder is not None:
        checkpoint.check_run(folder, progress.run, run)
        if progress.run is None:
            log.warning("%s does not say of which run it is; it is taken as one of this run", folder)
    engine.progress = engine.progress.model_copy(update={"run": run})
    if progress is None:
        log.info("no checkpoint in %s: starting from %s", directory, settings.trainer.model_path)
        if settings.synchronizer.sync_method == "checkpoint":
            # Version 0 must be somewhere to be taken from.
            engine.save_checkpoint(directory, engine.progress)
    else:
        log.info("going on after step %d, from %s", progress.step, checkpoint.latest(directory))
    return engine, make_publisher(settings.trainer, settings.synchronizer, directory, engine.device_type)


def run_identity(settings: Settings, source: Path, batches: LogIdentity) -> RunIdentity:
    """Return what tells this run from others.

    Args:
        settings: Of the service.
        source: The model that training begins with.
        batches: The log that is trained on.

    Raises:
        ConversionError: The model cannot be read.
    """
    try:
        model = model_digest(source)
    except OSError as error:
        raise ConversionError(f"{source} cannot be read: {error}") from error
    return RunIdentity(cluster=batches.cluster, batches=batches.topic, namespace=settings.kafka.namespace, model=model)


def _make(settings: Settings, followers: Followers | None) -> TrainingEngine:
    if settings.trainer.engine == "torch":
        from trinity_bus.training.torch_engine import TorchEngine

        return TorchEngine(settings.trainer)
    if followers is None:
        from trinity_bus.training.megatron_engine import MegatronEngine

        return MegatronEngine(settings.trainer)
    from trinity_bus.training.multi_rank_engine import MultiRankEngine

    return MultiRankEngine(settings.trainer, followers)
