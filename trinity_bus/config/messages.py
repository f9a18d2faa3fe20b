"""What is said of a wrong setting: one line that names it, its value and what would be right, and never a secret."""

import difflib
import os
from collections.abc import Mapping

from pydantic_core import ErrorDetails

from trinity_bus.config.names import ENV_DELIMITER, ENV_PREFIX, FILE_SUFFIX, env_name
from trinity_bus.config.sections import is_secret, secret_variables, sections, setting_paths
from trinity_bus.errors import ConfigError

_MAX_SHOWN = 120


def line(detail: ErrorDetails) -> str:
    """One validation error as "variable=value: what would be right"."""
    if detail["type"] == "missing_setting":
        return f"{env_name(detail['ctx']['path'])} is not set: {detail['ctx']['why']}"
    if detail["type"] in ("too_many_parts", "no_room", "no_tls"):
        return detail["msg"]
    # Beyond section and setting, a location names parts of a type, not of a variable.
    path = ".".join(str(part) for part in detail["loc"][:2])
    name = env_name(path)
    if detail["type"] == "extra_forbidden":
        return not_a_setting(name)
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    return f"{name}={_shown(path, detail['input'])}: {message}"


def _shown(path: str, value: object) -> str:
    section, _, setting = path.partition(".")
    kind = sections().get(section)
    field = None if kind is None else kind.model_fields.get(setting)
    if field is None or isinstance(value, Mapping):
        return "(not shown)"
    if is_secret(field):
        return "(secret)"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def not_a_setting(variable: str) -> str:
    """Say so of a variable, and name the nearest one that is."""
    name = variable.upper()
    known = [variable for variable, _ in setting_paths()]
    # What lies in another section, before what only looks alike.
    close = [other for other in known if other.rpartition(ENV_DELIMITER)[2] == name.rpartition(ENV_DELIMITER)[2]]
    known += [variable + FILE_SUFFIX for variable in secret_variables()]
    # Without what all begin with, which would make any two alike.
    short = [other.removeprefix(ENV_PREFIX) for other in known]
    close += [ENV_PREFIX + other for other in difflib.get_close_matches(name.removeprefix(ENV_PREFIX), short, n=1)]
    return f"{variable} is not a setting" + (f"; did you mean {close[0]}?" if close else "")


def not_a_section() -> str:
    """Note that a section's own variable holds something that is not JSON."""
    for section in sections():
        name = env_name(section)
        if name in os.environ:
            return f"{name} is not a setting: name one of the section, such as {name}{ENV_DELIMITER}..., or give JSON"
    return "a setting is not valid JSON"


def required[T](value: T | None, path: str, why: str) -> T:
    """Return the value of an optional setting that this service cannot do without.

    Args:
        value: The setting's value.
        path: Its place, such as ``"mesh.model_path"``.
        why: What it is needed for, the end of the sentence "it is needed ...".

    Raises:
        ConfigError: It is unset.
    """
    if value is None:
        raise ConfigError(f"{env_name(path)} is not set: it is needed {why}")
    return value
