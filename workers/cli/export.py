"""``trinity-bus export``: what the console's index holds, as Parquet files."""

from pathlib import Path
from typing import Annotated

import typer

from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.console.index.export import export as write_files
from trinity_bus.console.index.files import store_folder
from trinity_bus.console.index.follower import IndexFollower
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import StoreBusyError
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.tokens import load_texts
from trinity_bus.runtime.service import run_service
from workers.cli.connection import connected_settings
from workers.cli.console import console, folding_table

app = typer.Typer(add_completion=False, help="Write the console's index as Parquet files.")
out_console, err_console = console(), console(stderr=True)


@app.command("export")
def export(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the files.", file_okay=False)],
) -> None:
    """Update the console's index, and write its tables as Parquet files.

    A running console updates the index itself; its current state is written.
    """
    settings = connected_settings()
    folder = store_folder(settings)

    async def bring_forward(store: Store) -> None:
        async with Bus(settings.kafka, client_id="export") as bus:
            await bus.present()
        bus = Bus(settings.kafka, client_id="export")
        async with IndexFollower(bus, store, read_mib_s=settings.console.read_mib_s) as follower:
            await follower.caught_up()

    try:
        with _store(settings, folder) as store:
            run_service(lambda: bring_forward(store))
    except StoreBusyError:
        err_console.print("A console keeps the index up to date: what it has is written.", style="dim")
    table = folding_table("file", "rows")
    for name, rows in write_files(folder, out).items():
        table.add_row(str(out / f"{name}.parquet"), f"{rows:,}")
    out_console.print(table)
    with Index(folder) as index:
        if line := index.passed_over().line:
            err_console.print(line, style="yellow", highlight=False)


def _store(settings: Settings, folder: Path) -> Store:
    own = settings.console
    return Store(folder, texts=load_texts(own.model_path), search_tokens=own.search_tokens)
