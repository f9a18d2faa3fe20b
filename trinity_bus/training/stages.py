"""Stages: one training after another, each beginning with the model that the one before it has made. Pure.

::

    trainer.stages = [{stage = "sft", loss = "sft", total_steps = 100}, {stage = "grpo"}]

    settings of `trainer`, changed as the stage says --> the stage's settings, with checkpoint_dir/<stage> of its own
    model of stage n + 1 = last checkpoint of stage n

A stage is a run: it has steps, an optimizer, a reference and checkpoints of its own, and a name of its own on
``steps``. It is done when its last step has a checkpoint; so a trainer that starts anew finds out by itself where it
was. Settings without stages are one stage, in ``checkpoint_dir`` itself.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.record import IDENTIFIER_PATTERN
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.errors import ConfigError

NAME: Final = "stage"
_OF_THE_SERVICE: Final = frozenset(
    {"name", "role", "shadows", "stages", "model_path", "heartbeat_s", "host", "weights_port"}
    | {"checkpoint_dir", "checkpoint_url", "ranks_host", "ranks_port", "ranks_key"}
)


@dataclass(frozen=True, slots=True)
class Stage:
    # Empty where there are no stages
    name: str
    settings: Settings
    # Of its checkpoints
    directory: Path
    is_last: bool

    @property
    def url(self) -> str | None:
        """Where its checkpoints are copied to."""
        url = self.settings.trainer.checkpoint_url
        return url if url is None or not self.name else f"{url.rstrip('/')}/{self.name}"

    @property
    def writer(self) -> str:
        name = self.settings.trainer.name
        return f"{name}/{self.name}" if self.name else name

    def starting_from(self, model: Path) -> "Stage":
        trainer = self.settings.trainer.model_copy(update={"model_path": str(model)})
        settings = self.settings.model_copy(update={"trainer": trainer})
        return Stage(self.name, settings, self.directory, self.is_last)


def stages_of(settings: Settings, directory: Path) -> list[Stage]:
    told = settings.trainer.stages
    if not told:
        return [Stage("", settings, directory, is_last=True)]
    found: dict[str, Stage] = {}
    for place, changes in enumerate(told):
        name, is_last = changes.get(NAME), place == len(told) - 1
        if not isinstance(name, str) or not re.fullmatch(IDENTIFIER_PATTERN, name) or "/" in name or name in found:
            raise ConfigError(
                f"trainer.stages[{place}].{NAME} is {name!r}: give each stage a name of its own, a plain word"
            )
        trainer = _changed(settings.trainer, {key: value for key, value in changes.items() if key != NAME}, name)
        if not is_last and trainer.total_steps is None:
            raise ConfigError(
                f"trainer.stages: {name} needs total_steps: {told[place + 1].get(NAME)} begins where it ends"
            )
        if not is_last and trainer.save_as_hf == "never":
            raise ConfigError(
                f"trainer.stages: {name} needs save_as_hf, last or always: {told[place + 1].get(NAME)} begins with its "
                "model"
            )
        changed = settings.model_copy(update={"trainer": trainer})
        found[name] = Stage(name, changed, directory / name, is_last=is_last)
    return list(found.values())


def _changed(trainer: TrainerSettings, changes: dict[str, bool | int | float | str], stage: str) -> TrainerSettings:
    if fixed := sorted(_OF_THE_SERVICE & changes.keys()):
        raise ConfigError(f"trainer.stages: {stage} cannot change {fixed[0]}, which is one for all stages")
    try:
        return TrainerSettings.model_validate({**trainer.model_dump(exclude={"stages"}), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"trainer.stages: {stage}: {where}: {first['msg']}") from error
