"""``trinity-bus bench``: every checkpoint of a run answers the same evaluations."""

import time
from pathlib import Path
from typing import Annotated

import typer

from trinity_bus.config import Settings
from trinity_bus.errors import ConfigError
from trinity_bus.runtime.service import run_service
from trinity_bus.training.checkpoint import steps
from workers.bench import PLOT, RESULTS, Bench, plot, run_bench, table
from workers.cli.console import console, say
from workers.runs import new_run
from workers.taskset.dataset import load

app = typer.Typer()

_GRACE_S = 40.0  # Limit of stopping all services and the broker


@app.command()
def bench(
    *,
    checkpoints: Annotated[
        Path | None, typer.Argument(help="A trainer's checkpoints. Unset: trainer.checkpoint_dir.", show_default=False)
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="A description with evaluation sets. Unset: taskset.path.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Steps that are a multiple of this, and the last.")] = 1,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of this bench; an interrupted one continues.")] = None,
) -> None:
    """Evaluate each checkpoint on all evaluation sets: a table, a plot, a JSON file.

    It starts a coordinator, and an explorer for each checkpoint. A running mesh is not affected.
    """
    settings = Settings()
    folder = checkpoints or settings.trainer.checkpoint_dir
    description = tasks or settings.taskset.path
    if folder is None or description is None:
        raise ConfigError("bench needs checkpoints (or trainer.checkpoint_dir) and --tasks (or taskset.path)")
    found = sorted(steps(folder))
    chosen = [step for step in found if step % every == 0 or step == found[-1]]
    evals = load(description, taskset="bench", seed=settings.taskset.seed).evals
    if not chosen or not evals:
        what = f"no checkpoint in {folder}" if not chosen else f"no [[eval]] in {description}"
        raise ConfigError(f"there is {what}: nothing to do")
    where = run_dir or new_run(time.strftime("bench-%Y%m%d-%H%M%S"))
    where.mkdir(parents=True, exist_ok=True)
    asked = Bench(checkpoints=folder, steps=chosen, evals=evals, run_dir=where)
    done = run_service(lambda: run_bench(settings, asked, say), grace_s=_GRACE_S)
    if done is not None:
        plot(done, where / PLOT)
        console().print(table(done))
        say(f"{where / RESULTS}, {where / PLOT}")
