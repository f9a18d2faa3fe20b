"""``trinity-bus status``: batches, explorers, versions and lag, as they are now."""

import asyncio
import time
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from schemas.topics import BATCHES, EVENTS, MODEL_VERSIONS, TASKS
from trinity_bus.broker import resolve_bootstrap
from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.runtime.service import run_service
from workers.watch.follow import follow, lag
from workers.watch.render import mesh

app = typer.Typer(add_completion=False, help="Show batches, explorers, versions and lag, live.")
console = Console()

_REFRESH_S: Final = 0.5
_BATCHES_A_FRAME: Final = 20
"""A bound, so that a busy log cannot keep the picture from being drawn."""


@app.command()
def status(
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
) -> None:
    """Show batches, explorers, versions and lag, until Ctrl-C."""
    settings = Settings()
    kafka = resolve_bootstrap(settings.kafka, settings.broker)

    async def show() -> None:
        async with Bus(kafka, client_id="status") as bus:
            await bus.ensure_topics([BATCHES, EVENTS, MODEL_VERSIONS, TASKS])
            await _show(bus, live=console.is_terminal and not once)

    run_service(show)


async def _show(bus: Bus, *, live: bool) -> None:
    async with follow(bus) as follower:
        if not live:
            follower.view.tick(time.time())
            console.print(mesh(follower.view, await lag(bus)))
            return
        with Live(console=console, auto_refresh=False, screen=True) as screen:
            while True:
                follower.view.tick(time.time())
                screen.update(mesh(follower.view, await lag(bus)), refresh=True)
                await asyncio.sleep(_REFRESH_S)
                for _ in range(_BATCHES_A_FRAME):
                    if not await follower.update(0.0):
                        break
