"""``trinity-bus batches``: what became of each batch; and passing over one that cannot be trained on."""

import json
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import RenderableType

from schemas import BatchRecord, StepTrained
from schemas.topics import TRAINER_EVENTS
from trinity_bus import awake
from trinity_bus.bus import Reader
from trinity_bus.client import RolloutCoordinator
from trinity_bus.runtime.service import run_service
from trinity_bus.view import BatchView, MeshFollower, follow_batches
from workers.cli.connection import bus_of_mesh, connected_settings
from workers.cli.console import console, show_live
from workers.watch.render import all_batches_table

app = typer.Typer(add_completion=False, help="List the batches: their states, tasks and rewards.")
out = console()

_errors = console(stderr=True)

_WAIT_S: Final = 60.0
_NO: Final = 1


@app.callback(invoke_without_command=True)
def batches(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow changes until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every batch as a JSON object on one line.")] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="How many ended batches.")] = 20,
) -> None:
    """List the batches that have not ended, and the newest of those that have."""
    if context.invoked_subcommand is not None:
        return
    kafka = connected_settings().kafka

    async def show() -> None:
        async with bus_of_mesh(kafka, "batches") as bus, follow_batches(bus) as follower:
            await _show(follower, watch=watch, as_json=as_json, last=last)

    run_service(show)


@app.command()
def skip(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="As `trinity-bus batches` lists it.")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="The reason, for the lineage of every later version.")],
    timeout_s: Annotated[float, typer.Option("--timeout", help="How long to wait for the trainer, s.")] = 60.0,
) -> None:
    """Make the trainer skip a finalized batch that it cannot train on. Needs an operator's rights.

    The batch takes its step, which changes no weights. Exit code 1 where it cannot be passed over, or the trainer has
    trained on it. A trainer that is not there carries it out when it is.
    """
    kafka = connected_settings().kafka

    async def pass_over() -> None:
        async with bus_of_mesh(kafka, "skip") as bus, bus.reader(TRAINER_EVENTS, start="end") as events:
            try:
                async with RolloutCoordinator(bus=bus, name="skip", operator=True) as coordinator:
                    await coordinator.skip_batch(batch, reason=reason)
            except ValueError as error:
                _say(str(error))
                raise typer.Exit(_NO) from None
            step = await _step_of(batch, events, timeout_s)
        if step is None:
            _say(f"Batch {batch} is to be passed over; no trainer has reached it within {timeout_s:g} s.")
        elif any(skipped.batch_id == batch for skipped in step.skipped):
            _say(f"Batch {batch} is passed over, by step {step.step}.")
        else:
            _say(f"Too late: step {step.step} was trained on batch {batch}.")
            raise typer.Exit(_NO)

    run_service(pass_over)


async def _step_of(batch: str, events: Reader, timeout_s: float) -> StepTrained | None:
    # The step that a batch took, or that has gone past it; None if none did in time
    until = awake.now() + timeout_s
    while (left := until - awake.now()) > 0:
        for received in await events.batch(min(left, 1.0)):
            step = received.record
            if isinstance(step, StepTrained) and (
                step.batch_id == batch or any(skipped.batch_id == batch for skipped in step.skipped)
            ):
                return step
    return None


def _say(line: str) -> None:
    _errors.print(line, highlight=False, markup=False, soft_wrap=True)


async def _show(follower: MeshFollower, *, watch: bool, as_json: bool, last: int) -> None:
    view = follower.state
    if as_json:
        for batch in view.batches.values():
            typer.echo(_json(batch))
    elif not watch or not out.is_terminal:
        out.print(all_batches_table(view, last))
    if not watch:
        return
    if as_json or not out.is_terminal:
        await _lines(follower, as_json=as_json)
        return

    async def picture() -> RenderableType:
        return all_batches_table(follower.state, last)

    await show_live(out, picture)


async def _lines(follower: MeshFollower, *, as_json: bool) -> None:

    def print_change(record: object) -> None:
        if isinstance(record, BatchRecord):
            batch = follower.state.batches[record.batch_id]
            typer.echo(_json(batch) if as_json else f"{batch.batch_id}: {record.state}")

    follower.on_record = print_change
    while True:
        await follower.changed(_WAIT_S)


def _json(batch: BatchView) -> str:
    return json.dumps(asdict(batch))
