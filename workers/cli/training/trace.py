"""``trinity-bus trace``: a task's way as a tree of spans."""

from pathlib import Path
from typing import Annotated

import typer

from trinity_bus.config import Settings
from trinity_bus.telemetry import load_spans, load_task_spans, tree_of_task
from trinity_bus.telemetry.spans import TRACES
from workers.cli.console import console
from workers.runs import newest_run

app = typer.Typer()


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
    console().print(tree_of_task(spans, task_id))
