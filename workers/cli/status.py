"""``trinity-bus status`` and ``runners``: the mesh as it is now, and every process that runs workflows in explorers."""

from typing import Annotated, Final

import typer
from rich.console import RenderableType

from schemas.topics import BATCHES, EVENTS, MODEL_VERSIONS
from trinity_bus import awake
from trinity_bus.bus import Bus
from trinity_bus.view import HeldBack, MeshFollower, coordinator_lag, follow, runner_values
from workers.cli.connection import mesh_command
from workers.cli.console import console, show, show_live
from workers.watch import mesh, runners_table

app = typer.Typer()
out = console()

# How long a report is waited for where an explorer is alive and none of its reports is among the newest events
_REPORT_S: Final = 3.0
_Once = Annotated[bool, typer.Option("--once", help="Print once and exit.")]


@app.command()
@mesh_command("status")
async def status(bus: Bus, once: _Once = False) -> None:
    """Show batches, explorers, versions and lag, until Ctrl-C."""
    # No coordinator may have been here yet.
    present = await bus.present()
    held = HeldBack(bus, present)
    async with follow(bus, topics=[one for one in (BATCHES, MODEL_VERSIONS, *EVENTS) if one in present]) as follower:
        if once or not out.is_terminal:
            out.print(mesh(follower.state, await coordinator_lag(bus, present), await held.certain()))
            return

        async def picture() -> RenderableType:
            return mesh(follower.state, await coordinator_lag(bus, present), await held.look())

        await show_live(out, picture)


@app.command()
@mesh_command("runners")
async def runners(
    bus: Bus,
    once: _Once = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print once, a JSON object on each line.")] = False,
) -> None:
    """Show the state of each runner, until Ctrl-C."""
    async with follow(bus) as follower:

        async def picture() -> RenderableType:
            return runners_table(follower.state)

        if out.is_terminal and not once and not as_json:
            await show_live(out, picture)
        else:
            await _print_runners(follower, as_json=as_json)


async def _print_runners(follower: MeshFollower, *, as_json: bool) -> None:
    until = awake.now() + _REPORT_S
    while (left := until - awake.now()) > 0 and not all(explorer.runners for explorer in follower.state.alive()):
        await follower.changed(left)
    view = follower.state
    runners = ({"runner": runner.runner, **runner_values(runner)} for runner in view.runners())
    show(out, runners_table(view), runners, as_json=as_json)
