"""How a trainer compares the samples of a group, computed again from the log with the trainer's own code. Pure.

::

    settings that its trainer has told --settings_of--> trainer.advantage and what belongs to it
    whole group, less what the step leaves out  --compare--> the advantage of each sample, or why it is not known

An advantage that hangs on the other groups of the batch, on a critic or on all tokens of the step cannot be known of a
group alone: then it is said why. One that a package registers is not looked for: its name came off the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from schemas import ExperienceGroup
from schemas.step import LeftOut
from trinity_bus.config import TrainerSettings, values_told
from trinity_bus.console.index.terms import SettingsRow, StepName, WholeGroup
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages import Advantage, TokenAdvantage
from trinity_bus.training.stages import NAME as STAGE
from trinity_bus.training.steps.choice import unwanted, without
from trinity_bus.training.steps.samples import compared

# What those advantages look at that compare the samples of one group
_OF_TRAINER: Final = (
    "advantage",
    "advantage_std",
    "opmd_baseline",
    "opmd_tau",
    "max_tokens",
    "overlong_buffer",
    "overlong_penalty",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    name: str = ""  # Of ``trainer.advantage``; empty where it is not known
    # Of each sample, the mean over its trained tokens; None: it takes no part. Empty where they are not known.
    advantages: list[float | None] = field(default_factory=list)
    teaches_nothing: bool = False  # Whether the trainer passes over the group
    unknown: str = ""  # Why advantages are not known, for people; empty where they are

    def of(self, number: int) -> float | None:
        """Return the advantage of a sample of the whole group; None where there is none, or it is not known."""
        return self.advantages[number] if number < len(self.advantages) else None


def settings_of(step: StepName | None, told: Sequence[SettingsRow]) -> TrainerSettings:
    """Return what says how a step's trainer compares samples. ConfigError: nobody has told it, or it cannot be read."""
    if step is None and len(told) != 1:
        who = f"{len(told)} trainers" if told else "no trainer"
        raise ConfigError(f"no step was begun with it, and {who} told what it does")
    name, _, stage = (told[0].name if step is None else step.trainer).partition("/")
    row = next((row for row in told if row.name == name), None)
    if row is None:
        raise ConfigError(f"{name} has told no settings (replays and shadows do not), or retention had deleted them")
    paths = [f"{section}.{setting}" for section in ("mesh", "trainer") for setting in (*_OF_TRAINER, "stages")]
    values = {path.partition(".")[2]: value for path, value in values_told(row.settings, paths).items()}
    stages = values.pop("stages", [])
    if stages:
        of_stage = next((one for one in stages if isinstance(one, dict) and one.get(STAGE) == stage), None)
        if of_stage is None:
            raise ConfigError(f"{name} trains in stages, and it is not known in which")
        values |= {setting: value for setting, value in of_stage.items() if setting in _OF_TRAINER}
    return _checked(values)


def _checked(values: dict[str, Any]) -> TrainerSettings:
    try:
        settings = TrainerSettings(**values)
    except ValidationError as error:
        raise ConfigError(f"what its trainer has told cannot be: {error.errors()[0]['msg']}") from None
    if settings.advantage not in registry.BUILT_IN["advantage"]:
        raise ConfigError(f"trainer.advantage={settings.advantage[:80]!r} is of a package that the trainer has")
    return settings


def compare(whole: WholeGroup, group: ExperienceGroup, told: Sequence[SettingsRow]) -> Comparison:
    """Return what the first step that was begun with a group made of it, or its trainer would."""
    use = whole.uses[0] if whole.uses else None
    if whole.missing:
        return Comparison(unknown=f"{whole.missing} of its parts are not on the log")
    try:
        settings = settings_of(None if use is None else use.step, told)
        advantage: Advantage = registry.make("advantage", Advantage, settings)
        return _compared(group, advantage, [] if use is None else use.left_out)
    except TrinityError as error:
        return Comparison(unknown=str(error))


def _compared(group: ExperienceGroup, advantage: Advantage, left: Sequence[LeftOut]) -> Comparison:
    name, among = advantage.settings.advantage, advantage.settings.advantage_std
    if isinstance(advantage, TokenAdvantage):
        return Comparison(name=name, unknown=f"{name} compares all tokens of a step")
    gone = unwanted(left).get(group.task_id, set())
    kept = [number for number in range(len(group)) if number not in gone]
    judged = without([group], left)
    found = compared(judged[0], advantage) if judged else None
    if found is None:
        return Comparison(name=name, teaches_nothing=True)
    if among == "batch" and name in {"grpo", "stepwise"}:
        return Comparison(name=name, unknown="trainer.advantage_std=batch divides by the deviation of the whole batch")
    advantages: list[float | None] = [None] * len(group)
    masks = [sample.mask for sample in judged[0].samples()]
    for place, values in found.items():
        mean = float(values[masks[place]].mean()) if masks[place].any() else np.nan
        advantages[kept[place]] = None if np.isnan(mean) else mean
    return Comparison(name=name, advantages=advantages)
