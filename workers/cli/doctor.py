"""``trinity-bus doctor``: what of this machine would keep a mesh from working, each with its remedy."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from schemas.errors import printable
from trinity_bus.config import Settings, WrongSettingsError
from workers.cli.console import console, folding_table
from workers.doctor.checks import Finding, findings
from workers.preconditions import PRECONDITIONS

app = typer.Typer()

_COLOURS: Final = {"ok": "green", "note": "dim", "warning": "yellow", "error": "red"}


@app.command()
def doctor(
    services: Annotated[list[str] | None, typer.Argument(help="Services; reports what they would refuse, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check versions, settings, ports, memory, shared memory, clock, sandbox, disks, Java, GPU, broker and rights.

    Changes nothing. Exit code 1 if there is an error.
    """
    wanted = services or []
    if unknown := set(wanted) - set(PRECONDITIONS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is not one of {', '.join(PRECONDITIONS)}")
    found = _found(wanted)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        console().print(_table(found))
    if any(finding.level == "error" for finding in found):
        raise typer.Exit(1)


def _found(services: list[str]) -> list[Finding]:
    try:
        return asyncio.run(findings(Settings(), services))
    except WrongSettingsError as error:
        # Nothing else can be looked at: what is configured says where.
        remedy = "trinity-bus config show tells where each value comes from"
        return [Finding("error", "settings", problem, remedy) for problem in error.problems]


def _table(found: list[Finding]) -> Table:
    table = folding_table("", "what", "found", "what to do", box=None)
    for finding in found:
        level = Text(finding.level, _COLOURS[finding.level])
        table.add_row(level, finding.subject, Text(printable(finding.found)), Text(printable(finding.remedy)))
    return table
