"""``trinity-bus down``: the end of a mesh that ``trinity-bus up`` runs."""

from pathlib import Path
from typing import Annotated

import typer

from workers.cli.console import console
from workers.runs import newest_run
from workers.up import RUNNING, stop

app = typer.Typer(add_completion=False, help="Stop a mesh that `trinity-bus up` runs.")
out = console()

_LIMIT_S = 120.0


@app.command()
def down(
    run_dir: Annotated[Path | None, typer.Option("--run-dir", help="Folder of the run. Unset: the newest.")] = None,
) -> None:
    """Stop all its services and its broker in order. Its folder is kept, and ``up`` can continue in it.

    Exit code 1 if none runs.
    """
    folder = run_dir or newest_run(RUNNING)
    pid = stop(folder.absolute(), _LIMIT_S)
    if pid is None:
        out.print(f"Nothing runs in {folder}.", highlight=False, markup=False)
        raise typer.Exit(1)
    out.print(f"Stopped (process {pid}). {folder} stays.", highlight=False, markup=False)
