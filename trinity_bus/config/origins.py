"""Where each setting comes from: the environment, before the file, before its default."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_settings import BaseSettings

from trinity_bus.config.environment import unknown_variables
from trinity_bus.config.file import File
from trinity_bus.config.messages import nearest, not_a_setting
from trinity_bus.config.names import FILE_SUFFIX, env_name
from trinity_bus.config.sections import sections, setting_fields


class Origins:
    """The sources as they are now.

    Args:
        settings_cls: The settings' class.

    Raises:
        ConfigError: The file, or that of a secret, cannot be read.
    """

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        self._file = File(settings_cls)
        self._in_file = self._file()
        self._variables = {name.upper(): name for name, value in os.environ.items() if value}

    def of(self, path: str) -> str | None:
        """Return the variable, or the file and line, that a setting comes from; None for its default."""
        for variable in (env_name(path), env_name(path) + FILE_SUFFIX):
            if variable in self._variables:
                return self._variables[variable]
        return self._file.place(path) if path in _paths(self._in_file) else None

    def label(self, path: str) -> str:
        """Return what messages call a setting: by its place in the file where it comes from there."""
        from_file = path in _paths(self._in_file) and env_name(path) not in self._variables
        return f"{self._file.place(path)}: {path}" if from_file else env_name(path)

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
    """Every setting that a file gives; a table that is no section counts as one."""
    for section, content in given.items():
        if section in sections() and isinstance(content, Mapping):
            yield from (f"{section}.{name}" for name in content)
        else:
            yield section
