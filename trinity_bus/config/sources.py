"""Where settings come from: the command line, before the environment, before the file, before their defaults.

``TRINITY_BUS_CONFIG`` names the file, one in TOML for a whole mesh with a table for each section; paths in it count
from the working folder, as those in variables do. A file of this user that holds a secret is refused where others may
read or write it, as ssh does with a key. Each secret can also lie in a file of its own, which a variable of its name
and ``_FILE`` gives, as compose and Kubernetes mount them.

The message for a wrong setting is one line that names it, its value and what would be right, and never a secret.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, TomlConfigSettingsSource

from trinity_bus.config.sections import is_secret, secret_variables, sections, setting_fields
from trinity_bus.config.values import (
    CONFIG_VARIABLE,
    CONFLICT,
    ENV_DELIMITER,
    ENV_PREFIX,
    FILE_SUFFIX,
    env_name,
    nearest,
)
from trinity_bus.errors import ConfigError

_MAX_SHOWN = 120


class WrongSettingsError(ConfigError):
    """Settings are wrong; ``problems`` has a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def line(detail: ErrorDetails, label: Callable[[str], str], told: Callable[[str], str]) -> str:
    """Return a validation error as "setting=value: what would be right"."""
    # ``label`` names a setting that is wrong by itself; ``told`` names those in a message by where they come from.
    if detail["type"] == CONFLICT:
        return told(detail["msg"])
    # Beyond section and setting, a location names parts of a type, not of a variable.
    path = ".".join(str(part) for part in detail["loc"][:2])
    if detail["type"] == "extra_forbidden":
        return not_a_setting(env_name(path))
    message = told(detail["msg"][:1].lower() + detail["msg"][1:])
    return f"{label(path)}={_shown(path, detail['input'])}: {message}"


def _shown(path: str, value: object) -> str:
    field = setting_fields().get(path)
    if field is None or isinstance(value, Mapping):
        return "(not shown)"
    if is_secret(field):
        return "(secret)"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def not_a_setting(variable: str) -> str:
    """Say so of a variable, and name the nearest one that is."""
    name = variable.upper()
    if name.removeprefix(ENV_PREFIX).lower() in sections():
        return f"{variable} is not a setting: name one of the section, such as {name}{ENV_DELIMITER}..."
    known = [env_name(path) for path in setting_fields()] + [known + FILE_SUFFIX for known in secret_variables()]
    # Without what all begin with, which would make any two alike.
    short = [other.removeprefix(ENV_PREFIX) for other in known]
    found = nearest(name.removeprefix(ENV_PREFIX), short, delimiter=ENV_DELIMITER, prefix=ENV_PREFIX)
    return f"{variable} is not a setting{found}"


def required[T](value: T | None, path: str, why: str) -> T:
    """Return the value of an optional setting that this service cannot do without; ConfigError where it is unset."""
    # ``path`` is its place, such as ``"mesh.model_path"``; ``why`` the end of the sentence "it is needed ...".
    if value is None:
        raise ConfigError(f"{path} is not set: it is needed {why}")
    return value


MAX_TOML_BYTES = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LINE = re.compile(r"^\s*(?:\[\s*(?P<table>[\w-]+)\s*\]|(?P<key>[\w-]+(?:\s*\.\s*[\w-]+)?)\s*=)")
_MAX_SECRET_BYTES = 64 << 10
_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
# settings that the command line gives: their variables are set for the sake of the processes that it starts
OPTIONS: set[str] = set()
_PLACE = re.compile(r"\b[a-z]+\.[a-z_0-9]+\b")


def toml_of(content: bytes) -> dict[str, Any]:
    """Return the tables of a file, of which a byte more than its limit was read where it has more; else ValueError."""
    if len(content) > MAX_TOML_BYTES:
        raise ValueError(f"the file is too large: it may have {MAX_TOML_BYTES} bytes")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
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
        self.path = Path(name) if (name := os.environ.get(CONFIG_VARIABLE)) else None
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
        self._lines = dict(reversed([*_lines(content.decode("utf-8-sig"))]))

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


class Environment(EnvSettingsSource):
    # A secret's ``_FILE`` variable stands for what is in the file. What is to be JSON and is none is no mapping.
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value

    def _load_env_vars(self) -> Mapping[str, str | None]:
        given = dict(super()._load_env_vars())
        for variable in secret_variables():
            path = given.pop((variable + FILE_SUFFIX).lower(), None)
            if path is None:
                continue
            if given.get(variable.lower()) is not None:
                raise ConfigError(f"{variable} and {variable}{FILE_SUFFIX} are both set; leave one of them")
            given[variable.lower()] = _read_secret(variable + FILE_SUFFIX, Path(path))
        return given


def _read_secret(variable: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SECRET_BYTES + 1)
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ConfigError(f"{variable}={str(path)!r}: {error.strerror}; give the path of a readable file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{variable}={str(path)!r}: the file is not UTF-8 text") from None
    if not secret or len(content) > _MAX_SECRET_BYTES:
        raise ConfigError(f"{variable}={str(path)!r}: the file is {'too large' if secret else 'empty'}")
    return secret


def forget_secrets() -> None:
    """Take every secret out of ``os.environ``, so that no process started from now on inherits one."""
    # Settings that were read before keep theirs; those that are read afterwards have none, and nothing of the file.
    secret = set(secret_variables())
    for name in list(os.environ):
        # The settings file may hold some, too.
        if name.upper().removesuffix(FILE_SUFFIX) in secret or name == CONFIG_VARIABLE:
            del os.environ[name]


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that begin as ours do and are no setting: one that is misspelt would else have no effect."""
    # What Kubernetes makes of a service with our name (``TRINITY_BUS_..._SERVICE_HOST``) is left alone.
    known = {CONFIG_VARIABLE, *map(env_name, setting_fields()), *(name + FILE_SUFFIX for name in secret_variables())}
    return [
        variable
        for variable, value in environ.items()
        if (name := variable.upper()).startswith(ENV_PREFIX)
        and name not in known
        and _LINK.search(name) is None
        and not (name.endswith("_PORT") and "://" in value)
    ]


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
