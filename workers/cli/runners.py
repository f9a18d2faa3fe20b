"""``trinity-bus runners``: every process that runs workflows, in every explorer."""

import json
from typing import Annotated, Final

import typer
from rich.console import RenderableType

from trinity_bus import awake
from trinity_bus.runtime.service import run_service
from trinity_bus.view import MeshFollower, MeshState, follow, runner_values
from workers.cli.connection import bus_of_mesh, connected_settings
from workers.cli.console import console, show_live
from workers.watch.render import runners_table

app = typer.Typer(add_completion=False, help="Show every runner of every explorer, live.")
out = console()

# How long a report is waited for where an explorer is alive and none of its reports is among the newest events
_REPORT_S: Final = 3.0


@app.command()
def runners(
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print once, a JSON object on each line.")] = False,
) -> None:
    """Show the state of each runner, until Ctrl-C."""
    kafka = connected_settings().kafka

    async def show() -> None:
        async with bus_of_mesh(kafka, "runners") as bus, follow(bus) as follower:

            async def picture() -> RenderableType:
                return runners_table(follower.state)

            if out.is_terminal and not once and not as_json:
                await show_live(out, picture)
            else:
                await _print(follower, as_json=as_json)

    run_service(show)


async def _print(follower: MeshFollower, *, as_json: bool) -> None:
    until = awake.now() + _REPORT_S
    while (left := until - awake.now()) > 0 and _silent(follower.state):
        await follower.changed(left)
    view = follower.state
    if as_json:
        for runner in view.runners():
            typer.echo(json.dumps({"runner": runner.runner, **runner_values(runner)}))
    else:
        out.print(runners_table(view))


def _silent(view: MeshState) -> list[str]:
    return [explorer.name for explorer in view.alive() if not explorer.runners]
