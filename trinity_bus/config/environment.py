"""The environment as a source of settings.

Each secret can also lie in a file, which a variable of its name and ``_FILE`` gives, as compose and Kubernetes mount
them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic_settings import EnvSettingsSource

from trinity_bus.config.sections import secret_variables, setting_paths
from trinity_bus.config.values import CONFIG_VARIABLE, ENV_PREFIX, FILE_SUFFIX
from trinity_bus.errors import ConfigError

_MAX_SECRET_BYTES = 64 << 10
_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")


class Environment(EnvSettingsSource):
    # A secret's ``_FILE`` variable stands for what is in the file.
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
    known = {path for path, _ in setting_paths()} | {variable + FILE_SUFFIX for variable in secret_variables()}
    known.add(CONFIG_VARIABLE)
    return [
        variable
        for variable, value in environ.items()
        if (name := variable.upper()).startswith(ENV_PREFIX)
        and name not in known
        and _LINK.search(name) is None
        and not (name.endswith("_PORT") and "://" in value)
    ]
