"""``trinity-bus access``: the users of a mesh on a cluster that checks rights."""

import asyncio
from collections import defaultdict

import typer

from schemas.errors import counted
from trinity_bus.bus.administration.access import USERS, Kind, Operation, rights, user_name
from trinity_bus.bus.administration.access_admin import apply_access
from trinity_bus.bus.administration.requests import READ, REQUESTS, WRITE
from trinity_bus.config import Settings
from workers.cli.connection import connected_settings
from workers.cli.console import console, folding_table

app = typer.Typer(no_args_is_help=True)
out = console()

_IMPLIED = frozenset({Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS})


@app.command()
def show() -> None:
    """Show each user's rights. All users can also see the names and settings of the mesh's topics."""
    namespace = Settings().kafka.namespace
    table = folding_table("user", "may", "on", show_lines=False)
    for user in USERS:
        by_name: dict[tuple[Kind, str], list[Operation]] = defaultdict(list)
        for right in sorted(rights(namespace, user)):
            if not (right.kind is Kind.TOPIC and right.operation in _IMPLIED):
                by_name[right.kind, right.name + "*" * right.prefix].append(right.operation)
        for (kind, name), operations in by_name.items():
            words = ", ".join(operation.name.lower() for operation in operations)
            table.add_row(user_name(namespace, user), words, f"{kind.name.lower().replace('_', ' ')} {name}")
        table.add_section()
    out.print(table)


@app.command()
def apply() -> None:
    """Set passwords and quotas from TRINITY_BUS_ACCESS__*, and every user's rights exactly as `show` lists them.

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
