"""How a command finds its settings, its broker and its mesh."""

import functools
import inspect
import os
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate

import typer

from trinity_bus.broker import resolve_bootstrap
from trinity_bus.bus import Bus
from trinity_bus.config import Settings, env_name, setting_fields
from trinity_bus.config.sections import is_secret
from trinity_bus.config.sources import OPTIONS
from trinity_bus.config.values import nearest
from trinity_bus.runtime.service import run_service


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


def connected_settings() -> Settings:
    """Return the environment's settings, with the address of the configured broker, or the embedded one that runs."""
    settings = Settings()
    return settings.model_copy(update={"kafka": resolve_bootstrap(settings.kafka, settings.broker)})


def on_mesh[R](name: str, action: Callable[[Bus], Coroutine[Any, Any, R]], *, absent: bool = False) -> R | None:
    """Run a command over a connection to the mesh of the settings; None where it was told to end.

    Unless the mesh may be ``absent``, a namespace without topics is refused: one that was mistyped gets none.
    """
    kafka = connected_settings().kafka

    async def connected() -> R:
        async with Bus(kafka, client_id=name) as bus:
            if not absent:
                await bus.present()
            return await action(bus)

    return run_service(connected)


def mesh_command[**P](
    name: str, *, absent: bool = False
) -> Callable[[Callable[Concatenate[Bus, P], Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Make a command of a coroutine function that takes a connection to the mesh first, see :func:`on_mesh`."""

    def decorate(action: Callable[Concatenate[Bus, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @functools.wraps(action)
        def command(*args: P.args, **options: P.kwargs) -> None:
            on_mesh(name, lambda bus: action(bus, *args, **options), absent=absent)

        signature = inspect.signature(action)
        command.__signature__ = signature.replace(  # type: ignore[attr-defined] # what typer makes options of
            parameters=list(signature.parameters.values())[1:]
        )
        return command

    return decorate
