"""``trinity-bus abort``: give a batch up."""

from typing import Annotated, Final

import typer

from schemas.errors import one_line
from trinity_bus import awake
from trinity_bus.client import RolloutCoordinator
from trinity_bus.runtime.service import run_service
from trinity_bus.runtime.wording import counted
from trinity_bus.view import BatchView, follow_batches
from workers.cli.connection import bus_of_mesh, connected_settings
from workers.cli.console import console
from workers.runs import program

app = typer.Typer(add_completion=False, help="Abort a batch.")
out = console(stderr=True)

_NO: Final = 1
_WAIT_S: Final = 30.0


@app.command()
def abort(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="As `trinity-bus batches` lists it.")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="The reason, for the batch's record.")],
    keep_partial_results: Annotated[
        bool, typer.Option("--keep-partial-results", help="List the results so far in the batch's record.")
    ] = False,
) -> None:
    """Stop the attempts of a batch and end it without training on it. Its results so far stay on the log.

    Exit code 1 if there is no such batch, or it has ended.
    """
    kafka = connected_settings().kafka

    async def give_up() -> None:
        async with bus_of_mesh(kafka, "abort") as bus, follow_batches(bus) as follower:
            found = follower.state.batches.get(batch)
            if found is None or found.ended:
                _say(batch, found)
                raise typer.Exit(_NO)
            async with RolloutCoordinator(bus=bus, name="abort", operator=True) as coordinator:
                await coordinator.abort_batch(batch, reason=reason, keep_partial_results=keep_partial_results)
            # It may have ended by itself in the last moment; its record tells which.
            until = awake.now() + _WAIT_S
            while not found.ended and awake.now() < until:
                await follower.changed(1.0)
            _say(batch, found)
            if found.state != "aborted":
                raise typer.Exit(_NO)

    run_service(give_up)


def _say(name: str, batch: BatchView | None) -> None:
    if batch is None:
        line = f"No batch is called {name!r}; {program()} batches lists those that there are."
        out.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    counts = f"{counted(batch.completed, 'task')} done, {batch.aborted} cut off"
    why = f": {one_line(batch.reason)}" if batch.reason else ""
    out.print(f"Batch {name} is {batch.state}{why} ({counts})", highlight=False, markup=False, soft_wrap=True)
