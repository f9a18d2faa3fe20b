"""``trinity-bus access``: the users of a mesh on a cluster that checks rights."""

import asyncio

import typer

from schemas.errors import counted
from trinity_bus.bus.administration.access import USERS
from trinity_bus.bus.administration.access_admin import apply_access
from trinity_bus.bus.administration.requests import READ, REQUESTS, WRITE
from workers.cli.connection import connected_settings
from workers.cli.console import console

app = typer.Typer(no_args_is_help=True)
out = console()


@app.command()
def apply() -> None:
    """Set passwords and quotas from TRINITY_BUS_ACCESS__*, and every user's rights, exactly.

    Logs in with TRINITY_BUS_KAFKA__*, which must be an administrator of the cluster.
    """
    settings = connected_settings()
    passwords = {
        user: password.get_secret_value()
        for user in USERS
        if (password := getattr(settings.access, f"{user}_password")) is not None
    }
    access = settings.access
    quotas = {
        WRITE: access.producer_write_bytes_s,
        READ: access.producer_read_bytes_s,
        REQUESTS: access.producer_request_percent,
    }
    done = asyncio.run(apply_access(settings.kafka, passwords, {"producer": quotas}))
    bounds = ", ".join(f"{name}={value:g}" for name, value in quotas.items() if value is not None) or "no quotas"
    out.print(
        f"{len(USERS)} users of namespace {settings.kafka.namespace}: {counted(done.passwords, 'password')} set, "
        f"{counted(done.given, 'right')} given, {done.taken} taken away; producers have {bounds}"
    )
