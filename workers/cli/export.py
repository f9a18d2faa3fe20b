"""``trinity-bus export`` and ``track``: tables as Parquet files, and metrics for trackers of experiments."""

from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import by_number, counted
from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.console.index.files import export as write_files
from trinity_bus.console.index.files import store_folder
from trinity_bus.console.index.follower import catch_up
from trinity_bus.console.index.group_rows import load_texts
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import StoreBusyError
from trinity_bus.console.index.store import Store
from trinity_bus.runtime.service import run_service
from trinity_bus.telemetry.logs import console as log_to_terminal
from trinity_bus.tracking.sinks import MLflow, Sink, TensorBoard, Trackio, WeightsAndBiases
from trinity_bus.tracking.sinks import track as follow
from workers.cli.connection import connected_settings, on_mesh
from workers.cli.console import console, folding_table, say

app = typer.Typer()


@app.command()
def export(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the files.", file_okay=False)],
) -> None:
    """Update the console's index, and write its tables as Parquet files.

    A running console updates the index itself; its current state is written.
    """
    settings = connected_settings()
    folder = store_folder(settings)

    async def bring_forward(store: Store) -> None:
        async with Bus(settings.kafka, client_id="export") as bus:
            await bus.present()
        await catch_up(Bus(settings.kafka, client_id="export"), store, read_mib_s=settings.console.read_mib_s)

    try:
        own = settings.console
        with Store(folder, texts=load_texts(own.model_path), search_tokens=own.search_tokens) as store:
            run_service(lambda: bring_forward(store))
    except StoreBusyError:
        say("A console keeps the index up to date: what it has is written.", stderr=True, style="dim")
    table = folding_table("file", "rows")
    for name, rows in write_files(folder, out).items():
        table.add_row(str(out / f"{name}.parquet"), f"{rows:,}")
    console().print(table)
    with Index(folder) as index:
        if line := index.passed_over().line:
            say(line, stderr=True, style="yellow")


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
