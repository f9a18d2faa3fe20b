"""``trinity-bus up`` and ``down``: a mesh of one's own on this machine."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from trinity_bus.config import CONFIG_VARIABLE, Settings
from trinity_bus.errors import ConfigError
from trinity_bus.runtime.process import ProcessError, tail
from trinity_bus.runtime.service import run_service
from workers.cli.console import console, say
from workers.demo.display import make_display
from workers.runs import RUNS, command, newest_run, program
from workers.up import RUNNING, UpOptions, run_up, running, stop

app = typer.Typer()

_GRACE_S: Final = 60.0  # Limit of stopping all services and the broker
_DOWN_S: Final = 120.0
_POLL_S: Final = 0.1


@app.command()
def up(
    *,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="File of settings, in TOML.")] = None,
    explorers: Annotated[int, typer.Option(min=1, max=64, help="Number of explorers.")] = 1,
    gateway: Annotated[bool, typer.Option("--gateway", help="Also start a gateway.")] = False,
    with_console: Annotated[bool, typer.Option("--console", help="Also start a console.")] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of this run; an existing run continues. Unset: runs/NAMESPACE."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background until `trinity-bus down`.")] = False,
) -> None:
    """Start the services of the settings: a broker if none is configured, coordinator, explorers, trainer, task set.

    Shows progress, and ends when training is done, or with Ctrl-C. Services that end for a temporary reason are
    restarted. Exit code 1 if a service failed for good.
    """
    if config is not None:
        os.environ[CONFIG_VARIABLE] = str(config)
    settings = Settings()
    folder = (run_dir or RUNS / settings.mesh.namespace).absolute()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    if detach:
        _detach(folder, explorers, gateway=gateway, with_console=with_console)
        return
    options = UpOptions(run_dir=folder, explorers=explorers, gateway=gateway, console=with_console)
    display = make_display(console(), settings.trainer.total_steps)

    async def main() -> bool:
        await run_up(settings, options, display)
        return True

    try:
        with display.running():
            done = run_service(main, grace_s=_GRACE_S)
    except ProcessError as error:
        say(str(error), style="red")
        raise typer.Exit(1) from error
    if done:
        where = settings.trainer.export_dir or settings.trainer.checkpoint_dir or folder / "checkpoints"
        say(f"The training is done. Its model: {where}")


def _detach(folder: Path, explorers: int, *, gateway: bool, with_console: bool) -> None:
    # Run the same in the background, and return once it has the folder
    if (pid := running(folder)) is not None:
        raise ConfigError(
            f"{folder} is run by process {pid}: end it with `{program()} down`, or give another --run-dir"
        )
    asked = ["up", "--run-dir", str(folder), "--explorers", str(explorers)]
    asked += ["--gateway"] * gateway + ["--console"] * with_console
    log = folder / "logs" / "up.log"
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own program
            command(*asked), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    while running(folder) != process.pid:
        if process.poll() is not None:
            raise ConfigError(f"it ended at once; its log: {log}\n{tail(log)}")
        time.sleep(_POLL_S)
    say(
        f"The mesh runs in {folder} (process {process.pid}).",
        f"Look at it:  {program()} --config {folder / 'mesh.toml'} status",
        f"End it:      {program()} down --run-dir {folder}",
    )
    sys.stdout.flush()


@app.command()
def down(
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run. Unset: the newest.")] = None,
) -> None:
    """Stop all its services and its broker in order. Its folder is kept, and ``up`` can continue in it.

    Exit code 1 if none runs.
    """
    folder = run_dir or newest_run(RUNNING)
    pid = stop(folder.absolute(), _DOWN_S)
    if pid is None:
        say(f"Nothing runs in {folder}.")
        raise typer.Exit(1)
    say(f"Stopped (process {pid}). {folder} stays.")
