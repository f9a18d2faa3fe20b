"""``trinity-bus run``: one service of the mesh, in the foreground."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from trinity_bus.config import Settings
from trinity_bus.health.process import serving
from trinity_bus.runtime.secrecy import keep_secrets
from trinity_bus.runtime.service import run_service
from trinity_bus.telemetry.logs import console as log_to_terminal
from workers.cli.connection import connected_settings
from workers.cli.set_option import set_option

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Run one service of the mesh.")

LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.", envvar="LOG_LEVEL")]

_LEVELS = ("debug", "info", "warning", "error")


def _serve(service: Callable[[Settings], Coroutine[Any, Any, None]], settings: Settings, log_level: str) -> None:
    """Run a service until it ends or is asked to."""
    if log_level.lower() not in _LEVELS:
        raise typer.BadParameter(f"log level {log_level!r} is not one of {', '.join(_LEVELS)}")
    log_to_terminal(log_level.upper())
    keep_secrets()

    async def healthy() -> None:
        async with serving(settings.health, settings.kafka):
            await service(settings)

    run_service(healthy)


@app.command()
def coordinator(log_level: LogLevel = "info") -> None:
    """Form batches from tasks, hand them to explorers, announce model versions."""
    from workers.coordinator.service import run

    _serve(run, connected_settings(), log_level)


@app.command()
def explorer(
    name: Annotated[str | None, typer.Option("--name", help="Its name; no two live explorers share one.")] = None,
    log_level: LogLevel = "info",
) -> None:
    """Run workflows against a vLLM engine and publish experiences."""
    settings = connected_settings()
    if name is not None:
        set_option(f"explorer.name={name}")
        settings = connected_settings()
    from workers.explorer.service import run

    _serve(run, settings, log_level)


@app.command()
def trainer(log_level: LogLevel = "info") -> None:
    """Train on finalized batches with Megatron-core and publish model versions."""
    from workers.trainer.service import run

    _serve(run, connected_settings(), log_level)


@app.command()
def taskset(log_level: LogLevel = "info") -> None:
    """Turn a dataset into tasks, at the pace at which they are answered."""
    from workers.taskset.service import run

    _serve(run, connected_settings(), log_level)


@app.command()
def gateway(log_level: LogLevel = "info") -> None:
    """Answer agents over HTTP, with what explorers draw."""
    from workers.gateway.service import run

    _serve(run, connected_settings(), log_level)


@app.command()
def console(log_level: LogLevel = "info") -> None:
    """Show every rollout in a browser."""
    from workers.console.service import run

    _serve(run, connected_settings(), log_level)
