"""The environment of services that a mesh on this machine starts."""

import os

from pydantic import SecretStr

from trinity_bus.config import CONFIG_VARIABLE, Settings, env_name, setting_fields
from trinity_bus.config.sections import is_secret
from trinity_bus.config.values import FILE_SUFFIX


def service_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the services: this one, without settings, which are in the file, but with secrets."""
    fields = setting_fields()
    in_file = {env_name(path) for path, field in fields.items() if not is_secret(field)} | {CONFIG_VARIABLE}
    kept = {name: value for name, value in os.environ.items() if name.upper() not in in_file}
    names = {name.upper() for name in kept}
    for path in [path for path, field in fields.items() if is_secret(field)]:
        section, _, name = path.partition(".")
        secret: SecretStr | None = getattr(getattr(settings, section), name)
        if secret is not None and not {env_name(path), env_name(path) + FILE_SUFFIX} & names:
            # From the user's own file, which services do not read.
            kept[env_name(path)] = secret.get_secret_value()
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
