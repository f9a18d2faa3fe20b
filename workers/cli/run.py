"""``trinity-bus run``: one service of the mesh, in the foreground."""

import asyncio
import importlib
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from trinity_bus.config import Settings
from trinity_bus.health.process import serving
from trinity_bus.hub import located
from trinity_bus.runtime.memory import importing
from trinity_bus.runtime.secrecy import keep_secrets
from trinity_bus.runtime.service import GRACE_S, run_service
from trinity_bus.telemetry.logs import console as log_to_terminal
from trinity_bus.telemetry.logs import wanted_level
from trinity_bus.training.ranks.launch import Launch, launch_of
from workers.cli.connection import connected_settings, set_option

app = typer.Typer(no_args_is_help=True)


def _serve(name: str, *more: object) -> None:
    settings = connected_settings()
    log_to_terminal(wanted_level())
    keep_secrets()
    with importing():
        service: Callable[..., Coroutine[Any, Any, None]]
        service = importlib.import_module(f"workers.{name}.service").run

    async def healthy() -> None:
        async with serving(settings.health, settings.kafka):
            await service(await asyncio.to_thread(_with_model, name, settings), *more)

    drain_s = settings.explorer.drain_s if name == "explorer" else 0.0
    run_service(healthy, grace_s=GRACE_S + drain_s)


def _with_model(service: str, settings: Settings) -> Settings:
    # Settings in which the model that a service needs is a folder; it is fetched where it is on a hub
    sections = {"explorer": ("explorer",), "trainer": ("mesh", "trainer"), "gateway": ("gateway",)}.get(service, ())
    weights = service == "trainer" or (service == "explorer" and settings.explorer.engine_url is None)
    return located(settings, *sections, weights=weights)


def _add(name: str, told: str) -> None:
    @app.command(name, help=told)
    def serve() -> None:
        _serve(name)


_add("coordinator", "Form batches from tasks, dispatch them to explorers, announce model versions.")


@app.command()
def explorer(
    name: Annotated[str | None, typer.Option(help="The explorer's name, which must be unique.")] = None,
    fork_server: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run workflows against a vLLM engine and publish experiences."""
    if name is not None:
        set_option(f"explorer.name={name}")
    _serve("explorer", None if fork_server is None else socket.socket(fileno=fork_server))


@app.command()
def trainer() -> None:
    """Train on finalized batches with Megatron-core and publish model versions.

    Started by torchrun, on one machine or several, rank 0 is the trainer, and the others are its ranks.
    """
    launch = launch_of(os.environ)
    if launch is None or launch.rank == 0:
        _serve("trainer")
    else:
        raise typer.Exit(_follow(launch))


def _follow(launch: Launch) -> int:
    # Be a rank of the trainer other than the first: it needs no broker, and its health is rank 0's
    settings = _with_model("trainer", Settings())
    keep_secrets()
    with importing():
        follow: Callable[[Settings, Launch, int], int]
        follow = importlib.import_module("workers.trainer.launched_ranks").follow
    return follow(settings, launch, wanted_level())


_add("taskset", "Turn a dataset into tasks, as fast as they are answered.")
_add("gateway", "Answer agents over HTTP, with responses from explorers.")
_add("console", "Show every rollout in a browser.")
