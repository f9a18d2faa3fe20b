"""The option ``--set``: one setting on the command line."""

import os

import typer

from trinity_bus.config import env_name, setting_fields
from trinity_bus.config.messages import nearest
from trinity_bus.config.origins import OPTIONS
from trinity_bus.config.sections import is_secret


def set_option(text: str) -> None:
    """Take a setting such as ``coordinator.batch_size=32``; BadParameter where there is none, or it is a secret."""
    path, equals, value = text.partition("=")
    fields = setting_fields()
    if not equals:
        raise typer.BadParameter(f"{text!r}: expected SETTING=VALUE, such as coordinator.batch_size=32")
    if path not in fields:
        raise typer.BadParameter(f"{path} is not a setting{nearest(path, [*fields])}")
    if is_secret(fields[path]):
        raise typer.BadParameter(f"{path} is a secret, and others see command lines: use {env_name(path)}_FILE")
    for variable in [variable for variable in os.environ if variable.upper() == env_name(path)]:
        del os.environ[variable]
    os.environ[env_name(path)] = value
    OPTIONS.add(path)
