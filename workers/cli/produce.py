"""``trinity-bus produce``: tasks from a file of JSON lines, or from standard input, to the log."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from schemas.errors import printable
from schemas.task import Task
from schemas.topics import TASKS
from trinity_bus.bus import Bus
from trinity_bus.client import producer_name, send_tasks, sent_by
from trinity_bus.config import Settings
from trinity_bus.telemetry import setup_telemetry
from workers.cli.connection import connected_settings
from workers.cli.console import console
from workers.runs import program
from workers.task_lines import BadLine, parse

app = typer.Typer(add_completion=False, help="Produce tasks from a file of JSON lines, or from standard input (-).")
out = console(stderr=True)

_SHOWN_ERRORS: Final = 20
_NAME: Final = "produce"
"""What tasks are said to be from that do not say it themselves."""


@app.command()
def produce(
    file: Annotated[str, typer.Argument(metavar="FILE.jsonl|-", help="A task a line, as JSON.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the tasks and send none.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Send the good lines where some are bad.")] = False,
) -> None:
    """Check every line, then send the tasks. Nothing is sent where a line is bad, unless told so.

    Exit code 1 where a line is bad.
    """
    tasks, bad = _read(file)
    for line in bad[:_SHOWN_ERRORS]:
        out.print(
            f"[red]{escape(file)}:{line.number}[/]: {escape(printable(line.reason))}", highlight=False, soft_wrap=True
        )
    if len(bad) > _SHOWN_ERRORS:
        out.print(f"... and {len(bad) - _SHOWN_ERRORS} more bad lines")
    if dry_run or not tasks or (bad and not keep_going):
        out.print(f"{len(tasks)} tasks are good, {len(bad)} lines are bad; nothing was sent")
        raise typer.Exit(1 if bad else 0)
    settings = connected_settings()
    asyncio.run(_produce(settings, tasks))
    name = TASKS.full_name(settings.kafka.namespace)
    out.print(f"Sent {len(tasks)} tasks to [bold]{name}[/]")
    if (run_dir := settings.telemetry.run_dir) is not None:
        out.print(f"Follow one: {program()} trace {tasks[0].task_id} --run-dir {run_dir}", soft_wrap=True)
    if bad:
        raise typer.Exit(1)


def _read(file: str) -> tuple[list[Task], list[BadLine]]:
    tasks: list[Task] = []
    bad: list[BadLine] = []
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as lines:
            for parsed in parse(lines):
                if isinstance(parsed, BadLine):
                    bad.append(parsed)
                else:
                    tasks.append(parsed[1])
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error
    return tasks, bad


async def _produce(settings: Settings, tasks: list[Task]) -> None:
    telemetry = setup_telemetry("producer", settings.telemetry, namespace=settings.kafka.namespace)
    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        async with Bus(settings.kafka, client_id="produce") as bus:
            await bus.ensure_topics([TASKS])
            async with bus.producer() as producer:
                with Progress(*columns, console=out, transient=True) as progress:
                    bar = progress.add_task("sending", total=len(tasks))
                    named = sent_by(producer_name(settings.kafka, _NAME), tasks)
                    await send_tasks(producer, named, lambda: progress.advance(bar))
    finally:
        telemetry.shutdown()
