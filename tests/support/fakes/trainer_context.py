"""What a trainer has, for tests of parts of one: only what they give, and nothing in the place of the rest."""

from dataclasses import fields
from typing import Any, cast

from schemas.topics import BATCHES
from trinity_bus.config import Settings, TrainerSettings
from workers.trainer.training_loop import TrainerContext


def context_of(trainer: TrainerSettings | None = None, **parts: Any) -> TrainerContext:
    settings = Settings() if trainer is None else Settings().model_copy(update={"trainer": trainer})
    nothing = dict.fromkeys(field.name for field in fields(TrainerContext))
    given = {**nothing, "settings": settings, "topic": BATCHES, "incarnation": "life-1", **parts}
    return TrainerContext(**cast("Any", given))
