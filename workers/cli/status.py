"""``trinity-bus status``: batches, explorers, versions and lag, as they are now."""

from typing import Annotated

import typer
from rich.console import RenderableType

from schemas.topics import BATCHES, EVENTS, MODEL_VERSIONS
from trinity_bus.bus import Bus
from trinity_bus.runtime.service import run_service
from trinity_bus.view import HeldBack, coordinator_lag, follow
from workers.cli.connection import connected_settings
from workers.cli.console import console, show_live
from workers.watch.render import mesh

app = typer.Typer(add_completion=False, help="Show batches, explorers, versions and lag, live.")
out = console()


@app.command()
def status(once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False) -> None:
    """Show batches, explorers, versions and lag, until Ctrl-C."""
    kafka = connected_settings().kafka

    async def show() -> None:
        async with Bus(kafka, client_id="status") as bus:
            await _show(bus, live=out.is_terminal and not once)

    run_service(show)


async def _show(bus: Bus, *, live: bool) -> None:
    # No coordinator may have been here yet; a namespace without topics is refused here.
    present = await bus.present()
    held = HeldBack(bus, present)
    async with follow(bus, topics=[one for one in (BATCHES, MODEL_VERSIONS, *EVENTS) if one in present]) as follower:
        if not live:
            out.print(mesh(follower.state, await coordinator_lag(bus, present), await held.certain()))
            return

        async def picture() -> RenderableType:
            return mesh(follower.state, await coordinator_lag(bus, present), await held.look())

        await show_live(out, picture)
