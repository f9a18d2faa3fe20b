"""The settings file as a source: one TOML file for a whole mesh, a table for each section.

``TRINITY_BUS_CONFIG`` names it; paths in it count from the working folder, as those in variables do. A file of this
user that holds a secret is refused where others may read or write it, as ssh does with a key.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, TomlConfigSettingsSource

from trinity_bus.config.sections import is_secret, setting_fields
from trinity_bus.config.values import CONFIG_VARIABLE, FILE_SUFFIX, env_name
from trinity_bus.errors import ConfigError

MAX_TOML_BYTES = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LINE = re.compile(r"^\s*(?:\[\s*(?P<table>[\w-]+)\s*\]|(?P<key>[\w-]+(?:\s*\.\s*[\w-]+)?)\s*=)")


def config_file() -> Path | None:
    # None where the environment names none.
    return Path(name) if (name := os.environ.get(CONFIG_VARIABLE)) else None


def toml_of(content: bytes) -> dict[str, Any]:
    """Return the tables of a file, of which at least a byte more than its limit was read where it has more.

    Raises:
        ValueError: It is too large, or not TOML that can be read: what is wrong, in a line.
    """
    if len(content) > MAX_TOML_BYTES:
        raise ValueError(f"the file is too large: it may have {MAX_TOML_BYTES} bytes")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("this is not TOML: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"this is not TOML: {error}") from None


class File(TomlConfigSettingsSource):
    # Raises ConfigError where the file cannot be read, or is not TOML.
    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        self._lines: dict[str, int] = {}
        self.path = config_file()
        if self.path is not None and not self.path.is_file():
            # pydantic-settings passes over a file that is not there.
            raise ConfigError(
                f"{str(self.path)!r}, which --config or {CONFIG_VARIABLE} names: no such file; give the path of a "
                "readable file"
            )
        super().__init__(settings_cls, toml_file=self.path)

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        try:
            with file_path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read(MAX_TOML_BYTES + 1)
            found = toml_of(content)
        except OSError as error:
            raise ConfigError(f"{file_path}: {error.strerror}; give the path of a readable file") from None
        except ValueError as error:
            raise ConfigError(f"{file_path}: {error}") from None
        self._lines = dict(reversed([*_lines(content.decode())]))

        if status.st_uid == os.getuid() and status.st_mode & _OTHERS:
            self._keeps_no_secret(found, status.st_mode)
        return found

    def _keeps_no_secret(self, found: dict[str, Any], mode: int) -> None:
        for path, field in setting_fields().items():
            section, _, name = path.partition(".")
            content = found.get(section)
            if is_secret(field) and isinstance(content, dict) and name in content:
                raise ConfigError(
                    f"{self.place(path)}: {path} is a secret, and others may read or write the file (mode "
                    f"{stat.S_IMODE(mode):04o}): chmod 600 {self.path}, or name a file of the secret with "
                    f"{env_name(path)}{FILE_SUFFIX}"
                )

    def place(self, path: str) -> str:
        # Such as ``mesh.toml:12``.
        line = self._lines.get(path)
        return str(self.path) if line is None else f"{self.path}:{line}"


def _lines(text: str) -> Iterator[tuple[str, int]]:
    # Names in quotes, and tables within a line, are not found.
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.match(line)
        if match is None:
            continue
        if match["table"] is not None:
            table = match["table"]
            yield table, number
        else:
            key = re.sub(r"\s", "", match["key"])
            yield f"{table}.{key}" if table else key, number
