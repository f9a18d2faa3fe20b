"""Finds the parts of an objective by name: this package's own, and those that installed packages register.

A name comes from the settings of whoever runs the trainer, never off the wire. What it stands for is imported when it
is asked for, so names can be checked without importing torch.
"""

import difflib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

from trinity_bus.errors import ConfigError

if TYPE_CHECKING:
    from trinity_bus.config import TrainerSettings

_HERE: Final = "trinity_bus.training.objectives"
# Kind of part, name, and where it is
BUILT_IN: Final[dict[str, dict[str, str]]] = {
    "advantage": {
        "grpo": "advantages:GRPO",
        "rloo": "advantages:RLOO",
        "opmd": "advantages:OPMDAdvantage",
        "remax": "advantages:ReMax",
        "stepwise": "advantages:StepWise",
        "distillation": "advantages:Distillation",
        "reinforce_plus_plus": "advantages:ReinforcePlusPlus",
        "reinforce_plus_plus_baseline": "advantages:ReinforcePlusPlusBaseline",
        "gae": "advantages:GAE",
    },
    "loss": {
        "ppo": "losses:PPO",
        "gspo": "losses:GSPO",
        "cispo": "losses:CISPO",
        "topr": "losses:TOPR",
        "opmd": "losses:OPMDLoss",
        "sft": "losses:SFT",
        "dpo": "losses:DPO",
    },
    "correction": {
        "none": "correction:Uncorrected",
        "truncated": "correction:Truncated",
        "masked": "correction:Masked",
        "icepop": "correction:IcePop",
        "unbounded": "correction:Unbounded",
    },
}
# Where other packages register theirs: kind of part to group of entry points
GROUPS: Final = {
    "advantage": "trinity_bus.advantages",
    "loss": "trinity_bus.losses",
    "correction": "trinity_bus.corrections",
}


@cache
def installed(group: str) -> Sequence[EntryPoint]:
    # Looked up once: it takes a fifth of a second.
    return tuple(entry_points(group=group))


def known(kind: str) -> dict[str, EntryPoint]:
    group = GROUPS[kind]
    found = {name: EntryPoint(name, f"{_HERE}.{place}", group) for name, place in BUILT_IN[kind].items()}
    for entry in installed(group):
        if entry.name in found:
            raise ConfigError(f"{entry.value} registers the {kind} {entry.name!r}, which {found[entry.name].value} is")
        found[entry.name] = entry
    return found


def find(kind: str, name: str) -> EntryPoint:
    parts = known(kind)
    if name not in parts:
        near = difflib.get_close_matches(name, parts, 1)
        raise ConfigError(
            f"trainer.{kind}={name!r} is not known{f'; did you mean {near[0]!r}?' if near else ''}; "
            f"there are {', '.join(parts)}, and packages can register more as {GROUPS[kind]!r}"
        )
    return parts[name]


def check(settings: "TrainerSettings") -> None:
    """Find every part that the settings name, before anything is loaded; ConfigError where one is not known."""
    for kind in BUILT_IN:
        find(kind, getattr(settings, kind))


def make(kind: str, base: type[Any], settings: "TrainerSettings") -> Any:
    """Import and make the part that the settings name; ConfigError where that cannot be, or is no ``base``."""
    entry = find(kind, getattr(settings, kind))
    try:
        part = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"trainer.{kind}={entry.name!r}: {entry.value} cannot be imported: {error}") from error
    if not (isinstance(part, type) and issubclass(part, base)):
        raise ConfigError(f"trainer.{kind}={entry.name!r}: {entry.value} is no {base.__name__}")
    return part(settings)
