"""The engine that a trainer's settings ask for, as its newest checkpoint left it."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_bus.config import Settings
from trinity_bus.training import checkpoint
from trinity_bus.training.ranks import Followers
from workers.trainer.publication import Publisher, make_publisher

if TYPE_CHECKING:
    from trinity_bus.training.engine import TrainingEngine
    from trinity_bus.training.group_engine import GroupEngine

    type Engine = TrainingEngine | GroupEngine

log = logging.getLogger(__name__)


def load(settings: Settings, directory: Path, followers: Followers | None) -> "tuple[Engine, Publisher]":
    """The engine and the publisher. Takes seconds: imports torch and Megatron.

    Args:
        settings: Of the service.
        directory: Where its checkpoints are.
        followers: The other ranks; None where there are none.

    Raises:
        TrinityError: Training cannot begin.
    """
    engine = _make(settings, followers)
    progress = engine.load_latest(directory)
    if progress is None:
        log.info("no checkpoint in %s: starting from %s", directory, settings.trainer.model_path)
        if settings.synchronizer.sync_method == "checkpoint":
            # Version 0 must be somewhere to be taken from.
            engine.save_checkpoint(directory, engine.progress)
    else:
        log.info("going on after step %d, from %s", progress.step, checkpoint.latest(directory))
    device = engine.layout.device.type
    return engine, make_publisher(settings.trainer, settings.synchronizer, directory, device)


def _make(settings: Settings, followers: Followers | None) -> "Engine":
    if followers is None:
        from trinity_bus.training.engine import TrainingEngine

        return TrainingEngine(settings.trainer)
    from trinity_bus.training.group_engine import GroupEngine

    return GroupEngine(settings.trainer, followers)
