"""``trinity-bus batches`` and ``abort``: what became of each batch; the end of one, and skipping one."""

from dataclasses import asdict
from typing import Annotated, Final

import typer

from schemas import StepTrained
from schemas.errors import counted, one_line
from schemas.topics import BATCHES, TRAINER_EVENTS
from trinity_bus import awake
from trinity_bus.bus import Bus, Reader
from trinity_bus.client import RolloutCoordinator
from trinity_bus.view import follow
from workers.cli.connection import mesh_command, on_mesh
from workers.cli.console import console, say, show
from workers.runs import program
from workers.watch import all_batches_table

app = typer.Typer(add_completion=False)
out = console()

_ABORT_S: Final = 30.0
_NO: Final = 1

_Batch = Annotated[str, typer.Argument(metavar="BATCH", help="As `trinity-bus batches` lists it.")]


@app.callback(invoke_without_command=True)
def batches(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print every batch as a JSON object on one line.")] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="How many ended batches.")] = 20,
) -> None:
    """List the batches that have not ended, and the newest of those that have."""
    if context.invoked_subcommand is not None:
        return

    on_mesh("batches", lambda bus: _show(bus, as_json=as_json, last=last))


@app.command()
@mesh_command("skip")
async def skip(
    bus: Bus,
    batch: _Batch,
    reason: Annotated[str, typer.Option("--reason", "-r", help="The reason, for the lineage of every later version.")],
    timeout_s: Annotated[float, typer.Option("--timeout", help="How long to wait for the trainer, s.")] = 60.0,
) -> None:
    """Make the trainer skip a finalized batch that it cannot train on. Needs an operator's rights.

    The batch takes its step, which changes no weights. Exit code 1 where it cannot be passed over, or the trainer has
    trained on it. A trainer that is not there carries it out when it is.
    """
    async with bus.reader(TRAINER_EVENTS, start="end") as events:
        try:
            async with RolloutCoordinator(bus=bus, name="skip", operator=True) as coordinator:
                await coordinator.skip_batch(batch, reason=reason)
        except ValueError as error:
            say(str(error), stderr=True)
            raise typer.Exit(_NO) from None
        step = await _step_of(batch, events, timeout_s)
    if step is None:
        say(f"Batch {batch} is to be passed over; no trainer has reached it within {timeout_s:g} s.", stderr=True)
    elif any(skipped.batch_id == batch for skipped in step.skipped):
        say(f"Batch {batch} is passed over, by step {step.step}.", stderr=True)
    else:
        say(f"Too late: step {step.step} was trained on batch {batch}.", stderr=True)
        raise typer.Exit(_NO)


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


@app.command()
@mesh_command("abort")
async def abort(
    bus: Bus,
    batch: _Batch,
    reason: Annotated[str, typer.Option("--reason", "-r", help="The reason, for the batch's record.")],
    keep_partial_results: Annotated[
        bool, typer.Option("--keep-partial-results", help="List the results so far in the batch's record.")
    ] = False,
) -> None:
    """Stop the attempts of a batch and end it without training on it. Its results so far stay on the log.

    Exit code 1 if there is no such batch, or it has ended.
    """
    async with follow(bus, topics=[BATCHES], whole=True) as follower:
        found = follower.state.batches.get(batch)
        if found is None:
            say(f"No batch is called {batch!r}; {program()} batches lists those that there are.", stderr=True)
            raise typer.Exit(_NO)
        running = not found.ended
        if running:
            async with RolloutCoordinator(bus=bus, name="abort", operator=True) as coordinator:
                await coordinator.abort_batch(batch, reason=reason, keep_partial_results=keep_partial_results)
            # It may have ended by itself in the last moment; its record tells which.
            until = awake.now() + _ABORT_S
            while not found.ended and awake.now() < until:
                await follower.changed(1.0)
        counts = f"{counted(found.completed, 'task')} done, {found.aborted} cut off"
        why = f": {one_line(found.reason)}" if found.reason else ""
        say(f"Batch {batch} is {found.state}{why} ({counts})", stderr=True)
        if not running or found.state != "aborted":
            raise typer.Exit(_NO)


async def _show(bus: Bus, *, as_json: bool, last: int) -> None:
    async with follow(bus, topics=[BATCHES], whole=True) as follower:
        state = follower.state
        show(out, all_batches_table(state, last), map(asdict, state.batches.values()), as_json=as_json)
