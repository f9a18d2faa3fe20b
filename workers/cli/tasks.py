"""``trinity-bus produce``, ``tasks`` and ``harbor``.

Tasks, demonstrations or preferences, a JSON object a line, to the log; task sets as the taskset service reads them; and
those of them that Harbor runs.
"""

import asyncio
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from schemas.errors import by_number, counted, printable
from schemas.examples import Demonstration, Preference
from schemas.task import Task
from schemas.topic import Topic
from schemas.topics import DEMONSTRATIONS, PREFERENCES, TASKS
from trinity_bus.bus import Bus
from trinity_bus.client import producer_name, send_all, send_tasks, sent_by
from trinity_bus.config import Settings
from trinity_bus.hub import model_folder
from trinity_bus.runtime.memory import importing
from trinity_bus.runtime.secrecy import keep_secrets
from trinity_bus.runtime.service import run_service
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.telemetry.logs import console as log_to_terminal
from workers.cli.connection import connected_settings
from workers.cli.console import console, folding_table, say
from workers.runs import program
from workers.task_lines import BadLine, parse
from workers.taskset.dataset import load

app = typer.Typer()
out = console(stderr=True)

_SHOWN_ERRORS: Final = 20
_LONGEST_PREFIX: Final = 150
_SANDBOXES_S: Final = 120.0  # How long they may take to be removed at the end
_NAME: Final = "produce"  # What tasks are said to be from that do not say it themselves

type Kind = Literal["tasks", "demonstrations", "preferences"]
type _Record = Task | Demonstration | Preference

_KINDS: Final[dict[Kind, tuple[type[_Record], Topic]]] = {
    "tasks": (Task, TASKS),
    "demonstrations": (Demonstration, DEMONSTRATIONS),
    "preferences": (Preference, PREFERENCES),
}


@app.command()
def produce(
    file: Annotated[str, typer.Argument(metavar="FILE.jsonl|-", help="A JSON record on each line.")],
    kind: Annotated[Kind, typer.Option(help="What the lines are.")] = "tasks",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the lines and send none.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Send the valid lines if some are bad.")] = False,
) -> None:
    """Check every line, then send the records. If a line is bad, nothing is sent, unless --keep-going is given.

    Examples are also tokenized with the model in mesh.model_path, if it is set. Exit code 1 if a
    line is bad.
    """
    record_type, topic = _KINDS[kind]
    one = kind.removesuffix("s")
    records, bad = _read(file, record_type, (lambda _: None) if kind == "tasks" else _flaw_of(Settings()))
    for line in bad[:_SHOWN_ERRORS]:
        out.print(
            f"[red]{escape(file)}:{line.number}[/]: {escape(printable(line.reason))}", highlight=False, soft_wrap=True
        )
    if len(bad) > _SHOWN_ERRORS:
        out.print(f"... and {counted(len(bad) - _SHOWN_ERRORS, 'more bad line')}")
    if dry_run or not records or (bad and not keep_going):
        out.print(
            f"{counted(len(records), one)} {by_number(len(records), 'is', 'are')} good, {counted(len(bad), 'line')} "
            f"{by_number(len(bad), 'is', 'are')} bad; nothing was sent"
        )
        raise typer.Exit(1 if bad else 0)
    settings = connected_settings()
    asyncio.run(_produce(settings, topic, records))
    out.print(f"Sent {counted(len(records), one)} to [bold]{topic.full_name(settings.kafka.namespace)}[/]")
    if isinstance(records[0], Task) and (run_dir := settings.telemetry.run_dir) is not None:
        words = shlex.join(["trace", records[0].task_id, "--run-dir", str(run_dir)])
        say(f"Follow one: {program()} {words}", stderr=True)
    if bad:
        raise typer.Exit(1)


def _read(
    file: str, record_type: type[_Record], flaw_of: Callable[[_Record], str | None]
) -> tuple[list[_Record], list[BadLine]]:
    records: list[_Record] = []
    bad: list[BadLine] = []
    name = None if record_type is Task else _id_prefix(file)
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as lines:
            for parsed in parse(lines, record_type, name=name):
                if isinstance(parsed, BadLine):
                    bad.append(parsed)
                elif (flaw := flaw_of(parsed[1])) is not None:
                    bad.append(BadLine(parsed[0], flaw))
                else:
                    records.append(parsed[1])
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error
    return records, bad


def _id_prefix(file: str) -> str:
    # What ids begin with of examples that have none: the file's name, as far as an id may hold it
    name = "stdin" if file == "-" else Path(file).stem
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name).lstrip("-")[:_LONGEST_PREFIX] or "line"


def _flaw_of(settings: Settings) -> Callable[[_Record], str | None]:
    # What says why an example cannot be trained on, by the model of the settings
    if settings.mesh.model_path is None:
        out.print("The lines are not written as tokens of a model: set mesh.model_path to have that checked too")
        return lambda _: None
    from trinity_bus.training.steps.examples import ExampleError
    from workers.trainer.examples import example_reader

    reader = example_reader(model_folder(settings.mesh.model_path, weights=False), settings.mesh)

    def flaw(record: _Record) -> str | None:
        try:
            if not isinstance(record, Task):
                reader.samples(record)
        except ExampleError as error:
            return f"{error.flaw}: {error}"
        return None

    return flaw


async def _produce(settings: Settings, topic: Topic, records: list[_Record]) -> None:
    telemetry = setup_telemetry("producer", settings.telemetry, namespace=settings.kafka.namespace)
    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        async with Bus(settings.kafka, client_id="produce") as bus:
            await bus.ensure_topics([topic])
            async with bus.producer() as producer:
                with Progress(*columns, console=out, transient=True) as progress:
                    bar = progress.add_task("sending", total=len(records))
                    advance = lambda: progress.advance(bar)  # noqa: E731 - given to both
                    tasks = [record for record in records if isinstance(record, Task)]
                    if tasks:
                        await send_tasks(producer, sent_by(producer_name(settings.kafka, _NAME), tasks), advance)
                    else:
                        examples = (r for r in records if isinstance(r, Demonstration | Preference))
                        await send_all(producer, topic, ((r.example_id, r, None) for r in examples), advance)
    finally:
        telemetry.shutdown()


@app.command()
def tasks(
    path: Annotated[
        Path | None, typer.Argument(help="A file of tasks, or a description. Unset: taskset.path.", show_default=False)
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Print this many train tasks as JSON lines.")] = 0,
) -> None:
    """Check every row of task sets, and count them. Errors name the file, the row and the reason."""
    own = Settings().taskset
    if path is None and own.path is None:
        raise typer.BadParameter("give a path, or set taskset.path")
    sets = load(path or Path(str(own.path)), taskset=own.name, seed=own.seed, order=own.order)
    table = folding_table("set", "rows", "runs of each")
    if sets.train is not None:
        table.add_row("train", "endless" if sets.train.size is None else f"{sets.train.size:,}", "")
    for one in sets.evals:
        runs = sorted({task.repeat_times or 1 for task in one.tasks})
        table.add_row(f"eval {one.name}", f"{len(one.tasks):,}", " or ".join(map(str, runs)))
    console().print(table)
    for place in range(show if sets.train is not None else 0):
        assert sets.train is not None  # noqa: S101 - for types
        line = sets.train.task(own.name, place).model_dump_json(exclude_none=True)
        say(line)


@app.command()
def harbor(
    trial: Annotated[
        Path, typer.Argument(metavar="TRIAL.yaml", help="Harbor's configuration of trials: agent, sandbox.")
    ],
    concurrent: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 4,
    attempts: Annotated[int, typer.Option(min=1, help="Trials of a run until one has a reward.")] = 2,
) -> None:
    """Run the Harbor tasks of taskset.path with agents that use a gateway, and contribute their conversations.

    The key of the gateway's client is the first one of gateway.api_keys.
    """
    with importing():
        from workers.harbor import run

    settings = Settings()
    log_to_terminal("INFO")
    # A task may have Harbor put variables into its sandbox.
    keep_secrets()
    url = settings.gateway.reached_at()
    run_service(lambda: run(settings, trial, url, concurrent=concurrent, attempts=attempts), grace_s=_SANDBOXES_S)
