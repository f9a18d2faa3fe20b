"""``trinity-bus tasks``: read task sets as the taskset service would, count them, and show what comes first."""

from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import printable
from trinity_bus.config import Settings
from workers.cli.console import console, folding_table
from workers.taskset.dataset import load

app = typer.Typer(add_completion=False, help="Check task sets, count them, and show their first tasks.")
out = console()


@app.command()
def tasks(
    path: Annotated[
        Path | None, typer.Argument(help="A file of tasks, or a description. Unset: taskset.path.", show_default=False)
    ] = None,
    show: Annotated[int, typer.Option("--show", min=0, help="Print this many train tasks as JSON lines.")] = 0,
) -> None:
    """Check every row of task sets, and count them. Errors name the file, the row and the reason."""
    own = Settings().taskset
    if path is None and own.path is None:
        raise typer.BadParameter("give a path, or set taskset.path")
    sets = load(path or Path(str(own.path)), taskset=own.name, seed=own.seed, order=own.order)
    table = folding_table("set", "rows", "runs of each")
    if sets.train is not None:
        table.add_row("train", "endless" if sets.train.size is None else f"{sets.train.size:,}", "")
    for one in sets.evals:
        runs = sorted({task.repeat_times or 1 for task in one.tasks})
        table.add_row(f"eval {one.name}", f"{len(one.tasks):,}", " or ".join(map(str, runs)))
    out.print(table)
    for place in range(show if sets.train is not None else 0):
        assert sets.train is not None  # noqa: S101 - for types
        line = sets.train.task(own.name, place).model_dump_json(exclude_none=True)
        out.print(printable(line), markup=False, highlight=False, soft_wrap=True)
