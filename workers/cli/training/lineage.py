"""``trinity-bus lineage`` and ``trace``: what a step was made of and led to, and a task's way as a tree of spans."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from schemas import Position, PublishedVersion, StepBegun
from schemas.errors import printable
from schemas.step import step_key
from schemas.topic import Topic
from schemas.topics import EXPERIENCES, STEPS, VERSION_HISTORY
from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.telemetry import load_spans, load_task_spans, tree_of_task
from trinity_bus.telemetry.spans import TRACES
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint.manifest import Manifest, read_manifest
from trinity_bus.view.lineage import Places, StepLineage, TaskLineage, lineage_of
from workers.cli.connection import mesh_command
from workers.cli.console import console, folding_table, say
from workers.runs import NoRunError, newest_run

app = typer.Typer()
out = console()


@app.command()
@mesh_command("lineage")
async def lineage(
    bus: Bus,
    step: Annotated[int, typer.Argument(metavar="STEP", min=1, help="The step's number, which is also its version's.")],
    trainer: Annotated[str | None, typer.Option(help="Its trainer, such as a replay. Unset: trainer.name.")] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder of its checkpoints. Unset: trainer.checkpoint_dir.", file_okay=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every sample.")] = False,
) -> None:
    """Show a step's tasks and samples, their versions, trace ids, and the checkpoint's hash.

    The log has the last thousand steps of each trainer, and samples as long as their experiences are kept.
    """
    own = Settings().trainer
    record = await _record(bus, trainer or own.name, step)
    manifest = _checkpoint(directory or own.checkpoint_dir, record)
    found = lineage_of(
        record,
        await _experiences(bus, record),
        version=await _version(bus, record),
        checkpoint=None if manifest is None else str(manifest[0]),
        digests=None if manifest is None else manifest[1].digests,
        seal=None if manifest is None else manifest[1].seal,
    )
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        _show(found)


async def _record(bus: Bus, trainer: str, step: int) -> StepBegun:
    found = await _last(bus, STEPS, step_key(trainer, step), StepBegun)
    if found is None:
        raise NoRunError(
            f"nothing is known of step {step} of {trainer}: `steps` keeps the last thousand of each trainer; --trainer "
            "names another one"
        )
    return found


async def _experiences(bus: Bus, record: StepBegun) -> Places:
    kept = await bus.beginning_offsets(EXPERIENCES)
    parts = [part for group in (*record.groups, *record.replayed) for part in group.parts]
    left: list[Position] = [at for part in parts if (at := part.position) and at.offset >= kept[at.partition]]
    fetched = await bus.fetch(EXPERIENCES, left) if left else []
    return {(one.partition, one.offset): one for one in fetched}


async def _version(bus: Bus, record: StepBegun) -> PublishedVersion | None:
    # The version that a step has made, where this trainer has published it and it is remembered
    found = await _last(bus, VERSION_HISTORY, f"{record.model}/{record.step}", PublishedVersion)
    if found is None or found.batch_id not in {record.batch_id, None}:
        return None
    return found if record.trainer == found.trainer or record.trainer.startswith(f"{found.trainer}/") else None


async def _last[R](bus: Bus, topic: Topic, key: str, kind: type[R]) -> R | None:
    # The last record of a key; None where there is none, or it is of another kind
    found: R | None = None
    async with bus.reader(topic, start="beginning", key=key) as reader:
        async for received in reader.replay():
            found = received.record if isinstance(received.record, kind) else None
    return found


def _checkpoint(directory: Path | None, record: StepBegun) -> tuple[Path, Manifest] | None:
    # The step's checkpoint on this machine; None where it is not kept, or the folder is another run's
    folder = None if directory is None else checkpoint.of_step(directory, record.step)
    if folder is None or checkpoint.read_run(folder.parent) != record.run:
        return None
    return folder, read_manifest(folder)


def _show(one: StepLineage) -> None:
    weights = "not published" if one.weights is None else one.weights
    saved = one.checkpoint_digests.get("model.safetensors", "of no file") if one.checkpoint else ""
    lines = [
        ("step", f"{one.step} of {one.trainer}, run {one.run[:12]}, seed {one.seed}"),
        ("batch", f"{one.batch_id}, number {one.sequence}" + (f", passed over: {one.skipped}" if one.skipped else "")),
        ("weights", weights),
        ("checkpoint", f"{one.checkpoint}: model.safetensors {saved}" if one.checkpoint else "not kept here"),
        ("examples", str(len(one.examples))),
    ]
    for name, text in lines:
        say(f"{name:>10}  {text}")
    if one.tasks:
        out.print(_table(one.tasks))


def _table(tasks: Sequence[TaskLineage]) -> Table:
    table = folding_table("task", "samples", "left out", "reward", "versions", "trace", "experiences")
    for task in tasks:
        rewards = [sample.reward for sample in task.samples if sample.reward is not None]
        drawn = task.versions
        table.add_row(
            Text(printable(task.task_id) + (" (once more)" if task.once_more else ""), overflow="fold"),
            str(task.count),
            str(task.left_out) if task.samples else "",
            f"{sum(rewards) / len(rewards):.3f}" if rewards else "",
            ("" if not drawn else str(drawn[0]) if len(drawn) == 1 else f"{drawn[0]} to {drawn[-1]}")
            if task.samples
            else "gone",
            " ".join(task.traces),
            " ".join(task.places),
        )
    return table


@app.command()
def trace(
    task_id: Annotated[str, typer.Argument(metavar="TASK_ID", help="The task.")],
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run. Unset: configured, or the newest.")] = None,
    jaeger: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Read from Jaeger instead, such as http://localhost:16686."),
    ] = None,
) -> None:
    """Print a task's trace, from its send to the gradient and the resulting model version."""
    if jaeger is not None and run_dir is not None:
        raise typer.BadParameter("the spans are in a folder or in Jaeger: give one of --run-dir and --jaeger")
    if jaeger is not None:
        spans = load_task_spans(jaeger, task_id)
    else:
        spans = load_spans(run_dir or Settings().telemetry.run_dir or newest_run(TRACES))
    out.print(tree_of_task(spans, task_id))
