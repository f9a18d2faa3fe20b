"""Where commands print: as wide as the terminal; as wide as what is printed where there is none."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Column, Table

from schemas.errors import printable

# Columns of a file or a pipe: a table there is for ``grep`` and ``awk``, so that its rows are lines
UNFOLDED: Final = 10_000
_REFRESH_S: Final = 0.5


def console(*, stderr: bool = False) -> Console:
    """Return a console on standard output, or on standard error. The environment's ``COLUMNS`` wins."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() or "COLUMNS" in os.environ else UNFOLDED)


def say(*lines: str, stderr: bool = False, style: str | None = None) -> None:
    """Print lines as they are, whatever they quote: nothing in them is markup, folded, or steers the terminal."""
    out = console(stderr=stderr)
    for line in lines:
        out.print(printable(line), style=style, highlight=False, markup=False, soft_wrap=True)


def show(out: Console, table: RenderableType, records: Iterable[object], *, as_json: bool) -> None:
    """Print a table of records, or each of them as a line of JSON."""
    if not as_json:
        out.print(table)
        return
    for record in records:
        typer.echo(json.dumps(record))


def folding_table(*headers: str, **options: Any) -> Table:
    """Return a table whose cells are folded where the terminal is narrow, never cut: a name or a path stays whole."""
    return Table(*(Column(header, overflow="fold") for header in headers), **options)


async def show_live(console: Console, draw: Callable[[], Awaitable[RenderableType]]) -> NoReturn:
    """Show what ``draw`` makes of the mesh, again and again, until cancelled."""
    with Live(console=console, auto_refresh=False, screen=True) as screen:
        while True:
            screen.update(await draw(), refresh=True)
            await asyncio.sleep(_REFRESH_S)
