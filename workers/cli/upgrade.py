"""``trinity-bus upgrade``: the end of an upgrade."""

from typing import Annotated, Final

import typer

from schemas.topics import OPERATOR_COMMANDS
from trinity_bus.client.connection import Connection
from trinity_bus.coordination.state.codec import NEWEST_LEVEL
from trinity_bus.runtime.service import run_service
from workers.cli.connection import bus_of_mesh, connected_settings
from workers.cli.console import console

app = typer.Typer(add_completion=False, help="Finalize an upgrade.", no_args_is_help=True)
out = console(stderr=True)

_NO: Final = 1


@app.callback()
def upgrade() -> None:
    """End an upgrade."""


@app.command()
def finalize(
    level: Annotated[
        int, typer.Option("--level", min=1, help="Level of the state. Unset: the newest that this program knows.")
    ] = NEWEST_LEVEL,
) -> None:
    """Let the coordinator write its state in the new version's format. Afterwards the version before cannot be used.

    Until then the old version's coordinators can take over, and new state that does not fit into the old format is lost
    when the coordinator restarts. Exit code 1 if the leading coordinator does not
    know the level.
    """
    settings = connected_settings()

    async def ask() -> None:
        async with bus_of_mesh(settings.kafka, "upgrade") as bus:
            connection = await Connection.open(settings, bus, "upgrade", [OPERATOR_COMMANDS])
            try:
                reply = await connection.channel.finalize_upgrade(level)
            finally:
                await connection.close()
        out.print(reply.detail, highlight=False, markup=False, soft_wrap=True)
        if reply.error is not None:
            raise typer.Exit(_NO)

    run_service(ask)
