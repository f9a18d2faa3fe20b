"""``trinity-bus track`` and ``trace``: metrics for trackers of experiments, and a task's way as a tree of spans."""

from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import by_number, counted
from trinity_bus.config import Settings
from trinity_bus.telemetry import load_spans, load_task_spans, tree_of_task
from trinity_bus.telemetry.logs import console as log_to_terminal
from trinity_bus.telemetry.spans import TRACES
from trinity_bus.tracking.sinks import MLflow, Sink, TensorBoard, Trackio, WeightsAndBiases
from trinity_bus.tracking.sinks import track as follow
from workers.cli.connection import on_mesh
from workers.cli.console import console, say
from workers.runs import newest_run

app = typer.Typer()


@app.command()
def track(
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder of metrics.jsonl and all other files.", file_okay=False),
    ],
    *,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also event files, in tensorboard/.")] = False,
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Also a run of this project. WANDB_MODE=offline: in wandb/."),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            metavar="EXPERIMENT",
            help="Also a run of this experiment, at MLFLOW_TRACKING_URI, or in mlflow/mlflow.db.",
        ),
    ] = None,
    trackio: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Also a run of this project, in TRACKIO_DIR, or in trackio/.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End at the end of the log.")] = False,
) -> None:
    """Write the metrics of steps, batches and evaluations from the beginning of the log, and follow it.

    Killed and restarted at any moment, it continues without gaps or duplicates. See docs/telemetry.md.
    """
    namespace = Settings().kafka.namespace
    log_to_terminal("WARNING")

    def sinks() -> list[Sink]:
        found: list[Sink] = []
        if tensorboard:
            found.append(TensorBoard(out / "tensorboard"))
        if wandb is not None:
            found.append(WeightsAndBiases(out / "wandb", wandb, namespace))
        if mlflow is not None:
            found.append(MLflow(out / "mlflow", mlflow, namespace))
        if trackio is not None:
            found.append(Trackio(out / "trackio", trackio, namespace))
        return found

    written = on_mesh("track", lambda bus: follow(bus, out, sinks, once=once))
    if written is not None:
        say(f"{counted(written, 'line')} {by_number(written, 'is', 'are')} in {out}")


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
