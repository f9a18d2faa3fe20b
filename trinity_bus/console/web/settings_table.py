"""The settings of several runs side by side: what differs first. Pure.

A run has a value of a setting for each service that told it, one for each explorer; those that are the same are one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trinity_bus.console.index.answers import SettingsRow

_VALUES: Final = 3  # Of one run that are shown, where its services differ


@dataclass(frozen=True, slots=True)
class ComparedSetting:
    path: str
    # Of each run, as TOML writes it; empty where it is not set, None where no service of the run has told it
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        return len({value for value in self.values if value is not None}) > 1


def compared_settings(runs: Sequence[Sequence[SettingsRow]]) -> list[ComparedSetting]:
    """Return every setting that some run has told: first those in which they differ, then by path."""
    told = [_of_run(run) for run in runs]
    paths = sorted({path for run in told for path in run})
    rows = [ComparedSetting(path, tuple(run.get(path) for run in told)) for path in paths]
    return sorted(rows, key=lambda row: not row.differs)


def _of_run(services: Sequence[SettingsRow]) -> dict[str, str]:
    values: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for service in services:
        for path, value in service.settings.items():
            values[path][value] = None
    return {path: _joined(list(each)) for path, each in values.items()}


def _joined(values: list[str]) -> str:
    if len(values) == 1:
        return values[0]
    rest = len(values) - _VALUES
    shown = [value or "unset" for value in values[:_VALUES]]
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
