"""The settings of the mesh that is looked at: what its services have told, over the console's own. Pure.

Of each kind of service the one counts that told last; names are each one's own. What nobody tells, such as how the
broker is reached, is as the console has it. What a service has told that cannot be, or not beside what others told, is
left out, and the page says so: it came off the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trinity_bus.config import values_told
from trinity_bus.config.given import read_given
from trinity_bus.config.sections import Sections
from trinity_bus.console.configuration.fields import fields
from trinity_bus.console.configuration.files import changed_values
from trinity_bus.console.index.answers import SettingsRow
from trinity_bus.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunningSettings:
    settings: Sections
    # By whom, one of each kind; the others' are the console's own
    told: list[SettingsRow] = field(default_factory=list)
    refused: list[tuple[SettingsRow, str]] = field(default_factory=list)  # Whose were left out, and why


def running_settings(own: Sections, told: Sequence[SettingsRow]) -> RunningSettings:
    known = fields()
    values, settings = dict(changed_values(own)), own
    newest = {row.service: row for row in sorted(told, key=lambda row: row.at)}
    taken: list[SettingsRow] = []
    refused: list[tuple[SettingsRow, str]] = []
    for _, row in sorted(newest.items()):
        paths = [path for path in row.settings if path in known and not known[path].is_secret]
        paths = [path for path in paths if not path.endswith(".name")]
        try:
            its = values_told(row.settings, paths)
        except ConfigError as error:
            refused.append((row, str(error)))
            continue
        # What it has not set is not set, whatever the console has.
        others = {path: value for path, value in values.items() if path not in paths}
        found, wrong = read_given(others | its)
        if found is None:
            refused += [(row, why) for why in wrong.values()]
            its = {path: value for path, value in its.items() if path not in wrong}
            found, _ = read_given(others | its)
        if found is None:
            continue
        values, settings = others | its, found
        taken.append(row)
    return RunningSettings(settings, taken, refused)
