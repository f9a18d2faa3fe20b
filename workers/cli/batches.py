"""``trinity-bus batches``: what became of each batch."""

import json
import time
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Console, RenderableType

from schemas import BatchRecord
from schemas.topics import BATCHES
from trinity_bus.bus import Bus
from trinity_bus.runtime.service import run_service
from workers.cli.connection import connected_settings
from workers.cli.live import show_live
from workers.watch import BatchView
from workers.watch.follow import Follower, follow_batches
from workers.watch.render import all_batches_table

app = typer.Typer(add_completion=False, help="List the batches: their states, tasks and rewards.")
console = Console()

_WAIT_S: Final = 60.0


@app.command()
def batches(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on with what changes, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every batch, a JSON object a line.")] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="How many of those that have ended.")] = 20,
) -> None:
    """List the batches that have not ended, and the newest of those that have."""
    kafka = connected_settings().kafka

    async def show() -> None:
        async with Bus(kafka, client_id="batches") as bus:
            await bus.ensure_topics([BATCHES])
            async with follow_batches(bus) as follower:
                await _show(follower, watch=watch, as_json=as_json, last=last)

    run_service(show)


async def _show(follower: Follower, *, watch: bool, as_json: bool, last: int) -> None:
    view = follower.view
    view.tick(time.time())
    if as_json:
        for batch in view.batches.values():
            typer.echo(_json(batch))
    elif not watch or not console.is_terminal:
        console.print(all_batches_table(view, last))
    if not watch:
        return
    if as_json or not console.is_terminal:
        await _lines(follower, as_json=as_json)
        return

    async def picture() -> RenderableType:
        return all_batches_table(view, last)

    await show_live(console, follower, picture)


async def _lines(follower: Follower, *, as_json: bool) -> None:
    """A line for each change, as it comes."""
    while True:
        for received in await follower.update(_WAIT_S):
            if not isinstance(received.record, BatchRecord):
                continue
            batch = follower.view.batches[received.record.batch_id]
            typer.echo(_json(batch) if as_json else f"{batch.batch_id}: {received.record.state}")


def _json(batch: BatchView) -> str:
    return json.dumps(asdict(batch))
