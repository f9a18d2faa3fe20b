"""``trinity-bus console``: the console, in the foreground, for whoever sits at this machine."""

from typing import Annotated

import typer

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
) -> None:
    """Show the mesh in a browser, now and as it was, until Ctrl-C. See docs/console.md."""
    if port is not None:
        set_option(f"console.port={port}")
    settings = connected_settings()
    from workers.console.service import run

    log_to_terminal("WARNING")
    keep_secrets()

    def listens(address: str) -> None:
        out.print(f"The console is at http://{address}/  (Ctrl-C ends it)", highlight=False, markup=False)

    run_service(lambda: run(settings, listens))
