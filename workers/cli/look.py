"""``trinity-bus console``: the console, in the foreground, for whoever sits at this machine."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from trinity_bus.config import CONFIG_VARIABLE, Settings
from trinity_bus.runtime.secrecy import keep_secrets
from trinity_bus.runtime.service import run_service
from trinity_bus.telemetry.logs import console as log_to_terminal
from workers.cli.connection import connected_settings
from workers.cli.console import console
from workers.cli.set_option import set_option

app = typer.Typer(add_completion=False, help="Show every rollout in a browser.")
out = console()


@app.command()
def look(
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Where it listens; 0: any that is free.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="Folder of a run of the demo that has ended: its log is opened again."),
    ] = None,
) -> None:
    """Show the mesh in a browser, now and as it was, until Ctrl-C. See docs/console.md."""
    if run_dir is not None:
        mesh_file = run_dir / "mesh.toml"
        if not mesh_file.is_file() or not (run_dir / "broker").is_dir():
            raise typer.BadParameter(f"{run_dir} is no folder of a run: it lacks mesh.toml, or the broker's data")
        os.environ[CONFIG_VARIABLE] = str(mesh_file)
    if port is not None:
        set_option(f"console.port={port}")
    with ExitStack() as stack:
        settings = connected_settings() if run_dir is None else _reopened(run_dir, stack)
        from workers.console.service import run

        log_to_terminal("WARNING")
        keep_secrets()

        def listens(address: str) -> None:
            out.print(f"The console is at http://{address}/  (Ctrl-C ends it)", highlight=False, markup=False)

        run_service(lambda: run(settings, listens, is_record=run_dir is not None))


def _reopened(run_dir: Path, stack: ExitStack) -> Settings:
    """Return settings with a broker over the log of a run, which ends with the stack."""
    from trinity_bus.broker import EmbeddedBroker

    settings = Settings()
    own = settings.broker.model_copy(update={"port": 0, "data_dir": run_dir / "broker"})
    broker = stack.enter_context(EmbeddedBroker(own))
    return settings.model_copy(update={"kafka": broker.kafka_settings(settings.kafka)})
