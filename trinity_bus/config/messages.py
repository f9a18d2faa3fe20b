"""What is said of a wrong setting: one line that names it, its value and what would be right, and never a secret."""

from collections.abc import Callable, Mapping, Sequence

from pydantic_core import ErrorDetails

from trinity_bus.config.sections import is_secret, secret_variables, sections, setting_fields
from trinity_bus.config.values import CONFLICT, ENV_DELIMITER, ENV_PREFIX, FILE_SUFFIX, env_name, nearest
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
