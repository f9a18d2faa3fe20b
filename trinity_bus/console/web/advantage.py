"""What a group teaches, computed as the trainer does: by its own class, with the settings that it has told. Pure.

What a group alone does not decide is not known here, and the reason is told in its place: where rewards are divided by
the deviation of the whole batch, where the step normalizes over all its tokens, where no trainer has told its settings.
A class is looked up among this package's own alone: a name that came off the log is no reason to import another.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from schemas import ExperienceGroup
from trinity_bus.config import TrainerSettings
from trinity_bus.console.index.answers import SettingsRow
from trinity_bus.errors import TrinityError
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.advantages.advantage import Advantage, TokenAdvantage
from trinity_bus.training.samples import mean_advantages

_DECIDES: Final = ("trainer.advantage", "trainer.opmd_", "trainer.overlong_")
"""How the paths of settings begin that a group's advantages depend on."""
_OF_THE_BATCH: Final = frozenset({"grpo", "stepwise"})
"""Advantages that ``trainer.advantage_std`` is for."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Those of a group's samples, or why they are not known."""

    of: str = ""
    """How they are computed: the value of ``trainer.advantage``; empty where nobody has told."""
    values: Sequence[float | None] = field(default_factory=tuple)
    """Of each sample, the mean over its tokens; None for those that are not trained on. Empty: not known."""
    teaches_nothing: bool = False
    unknown: str = ""
    """Why they are not known; empty where they are."""

    def at(self, number: int) -> float | None:
        """Return that of a sample; None where it has none or it is not known."""
        return self.values[number] if number < len(self.values) else None


def advantages_of(group: ExperienceGroup, told: Sequence[SettingsRow], trainer: str | None) -> Advantages:
    """Return the advantages of a group.

    Args:
        group: All parts of a task's.
        told: What services were started with.
        trainer: Which has trained on it; None: none has yet, and all that have told their settings count.
    """
    rows = [row for row in told if row.service == "trainer" and trainer in {None, row.name}]
    decided = [{path: text for path, text in row.settings.items() if path.startswith(_DECIDES)} for row in rows]
    if not decided:
        return Advantages(unknown=f"{trainer} has not told its settings" if trainer else "no trainer told its settings")
    if any(one != decided[0] for one in decided):
        return Advantages(unknown=f"the settings of {len(decided)} trainers differ, and none has trained on it yet")
    try:
        settings = _settings(decided[0])
    except (tomllib.TOMLDecodeError, ValidationError):
        return Advantages(unknown="the settings that the trainer has told cannot be read")
    if reason := _undecided(settings):
        return Advantages(of=settings.advantage, unknown=reason)
    return _computed(group, settings)


def _undecided(settings: TrainerSettings) -> str:
    """Return why a group alone does not tell its advantages; empty where it may."""
    if settings.advantage not in registry.BUILT_IN["advantage"]:
        return "it comes with another package, which the console does not load"
    if settings.advantage in _OF_THE_BATCH and settings.advantage_std == "batch":
        return "it is divided by the deviation of the whole batch"
    return ""


def _computed(group: ExperienceGroup, settings: TrainerSettings) -> Advantages:
    name = settings.advantage
    try:
        advantage: Advantage = registry.make("advantage", Advantage, settings)
        if isinstance(advantage, TokenAdvantage):
            return Advantages(of=name, unknown="it is decided over all tokens of the step")
        values = mean_advantages(group, advantage)
    except TrinityError as error:
        return Advantages(of=name, unknown=f"alone, the group lacks what it needs: {error}")
    return Advantages(of=name, teaches_nothing=True) if values is None else Advantages(of=name, values=values)


def run_rewards(group: ExperienceGroup) -> list[float]:
    """Return the mean reward of each run that has one, in the order of run ids: what a trainer compares."""
    given = ~np.isnan(group.rewards)
    ids, owners = np.unique(group.run_ids[given], return_inverse=True)
    sums = np.bincount(owners, weights=group.rewards[given].astype(np.float64), minlength=len(ids))
    means: list[float] = (sums / np.bincount(owners, minlength=len(ids))).tolist()
    return means


def _settings(told: Mapping[str, str]) -> TrainerSettings:
    values: dict[str, Any] = {
        path.removeprefix("trainer."): tomllib.loads(f"value = {text}")["value"] for path, text in told.items() if text
    }
    return TrainerSettings(**values)
