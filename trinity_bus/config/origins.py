"""Where each setting comes from: the command line, before the environment, before the file, before its default."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_settings import BaseSettings

from trinity_bus.config.environment import unknown_variables
from trinity_bus.config.file import File
from trinity_bus.config.messages import nearest, not_a_setting
from trinity_bus.config.sections import sections, setting_fields
from trinity_bus.config.values import FILE_SUFFIX, env_name

# settings that the command line gives: their variables are set for the sake of the processes that it starts
OPTIONS: set[str] = set()
_PLACE = re.compile(r"\b[a-z]+\.[a-z_0-9]+\b")


class Origins:
    """The sources as they are now; ConfigError where the file, or that of a secret, cannot be read."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        self._file = File(settings_cls)
        self._in_file = self._file()
        self._variables = {name.upper(): name for name, value in os.environ.items() if value}

    def of(self, path: str) -> str | None:
        """Return the option, variable, or file and line that a setting comes from; None for its default."""
        if path in OPTIONS:
            return f"--set {path}"
        for variable in (env_name(path), env_name(path) + FILE_SUFFIX):
            if variable in self._variables:
                return self._variables[variable]
        return self._file.place(path) if path in _paths(self._in_file) else None

    def label(self, path: str) -> str:
        """Return what messages call a setting that is wrong by itself: by its place in the file where it is there."""
        origin = self.of(path)
        return f"{origin}: {path}" if self._is_in_file(path) else self._named(path)

    def told(self, message: str) -> str:
        """Return a message that names settings by their places, with where each of them comes from."""
        return _PLACE.sub(lambda match: self._named(match[0]) if match[0] in setting_fields() else match[0], message)

    def _named(self, path: str) -> str:
        if self._is_in_file(path):
            return f"{path} ({self.of(path)})"
        return self.of(path) or (env_name(path) if self._file.path is None else path)

    def _is_in_file(self, path: str) -> bool:
        return path in _paths(self._in_file) and self.of(path) == self._file.place(path)

    def unknown(self) -> dict[str, str]:
        """Return what is said of each thing that is given and is no setting, by its path or variable."""
        said = {name: not_a_setting(name) for name in unknown_variables(os.environ)}
        known = [*setting_fields(), *sections()]
        for path in _paths(self._in_file):
            if path not in known:
                what, others = ("setting", setting_fields()) if "." in path else ("section", sections())
                said[path] = f"{self._file.place(path)}: {path} is not a {what}{nearest(path, [*others])}"
        return said


def _paths(given: Mapping[str, Any]) -> Iterator[str]:
    # A table that is no section counts as one setting.
    for section, content in given.items():
        if section in sections() and isinstance(content, Mapping):
            yield from (f"{section}.{name}" for name in content)
        else:
            yield section
